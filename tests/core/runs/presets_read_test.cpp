// Unit: presets that rows name. Expectation: read once, as they were first; another reader reads anew; errors are not kept.
#include "core/runs/presets_read.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

TEST(PresetsRead, EachIsReadOnceByAReaderAndItsCopies) {
  const TempDir presets;
  const PresetsRead read;
  EXPECT_THROW(read.stack("own", presets.path()), ConfigError);
  const auto write = [&](double bytes) {
    presets.write("stacks/own.json",
                  R"({"name": "own", "kernels": {"loss_bytes_per_logit": )" + std::to_string(bytes) + "}}");
  };
  write(7);
  EXPECT_EQ(read.stack("own", presets.path()).kernels.loss_bytes_per_logit, 7);
  write(9);
  const PresetsRead copy = read;
  EXPECT_EQ(copy.stack("own", presets.path()).kernels.loss_bytes_per_logit, 7);
  EXPECT_EQ(PresetsRead().stack("own", presets.path()).kernels.loss_bytes_per_logit, 9) << "control";
  EXPECT_EQ(copy.stack("own", presets.path(), "hopper").kernels.loss_bytes_per_logit, 9)
      << "another question";
}

}  // namespace
}  // namespace sextant
