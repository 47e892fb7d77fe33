// A build without the library of charts: `sextant report` says what is missing and how to get it, and writes nothing.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tools/report/page_files.hpp"

namespace sextant {
namespace {

TEST(NoCharts, TheCommandSaysWhatIsMissing) {
  ASSERT_TRUE(page_files().library.empty());
  ASSERT_FALSE(page_files().page.empty());  // negative control: the rest of the page is there
  const TempDir folder;
  const auto answer = folder.path() / "simulate.json", page = folder.path() / "page.html";
  const Called simulated = call({"simulate", "--model", "llama-2-7b", "--cluster", "1x8xa100-80gb", "--plan",
                                 "tp2.pp2.dp2.z1.mbs4", "--json"});
  ASSERT_EQ(simulated.code, ExitCode::ok) << simulated.err;
  std::ofstream(answer) << simulated.out;
  const Called made = call({"report", answer.string(), "-o", page.string()});
  EXPECT_EQ(made.code, ExitCode::run_failed);
  EXPECT_EQ(made.out, "");
  EXPECT_NE(made.err.find("libjs-d3"), std::string::npos) << made.err;
  EXPECT_FALSE(std::filesystem::exists(page));
}

}  // namespace
}  // namespace sextant
