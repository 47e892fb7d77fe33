// The corpus of the fuzzers, and every input they ever failed on, in the normal test run; then some thousands
// of damaged copies of each.
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "core/base/file_io.hpp"
#include "tests/fuzz/targets.hpp"

namespace sextant::fuzz {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> corpus(std::string_view target) {
  std::vector<std::string> inputs;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SEXTANT_SOURCE_DIR) / "tests/fuzz/corpus" / target))
    inputs.push_back(read_text_file(entry.path()));
  return inputs;
}

class Replay : public testing::TestWithParam<Target> {};

TEST_P(Replay, CorpusAndDamagedCopies) {
  const auto inputs = corpus(GetParam().name);
  ASSERT_GE(inputs.size(), 3U);
  std::mt19937 random(12345);
  const auto upto = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n)(random); };
  for (const auto& input : inputs) {
    ASSERT_NO_THROW(GetParam().run(input)) << input;
    for (int round = 0; round < 300; ++round) {
      std::string damaged = input;
      for (std::size_t change = upto(3); change < 4 && !damaged.empty(); ++change) {
        const std::size_t at = upto(damaged.size() - 1);
        const std::string& other = inputs[upto(inputs.size() - 1)];
        switch (upto(3)) {
          case 0:
            damaged[at] = static_cast<char>(upto(255));
            break;
          case 1:
            damaged.erase(at, 1 + upto(8));
            break;
          case 2:
            damaged.resize(at);
            break;
          default:
            damaged.insert(at, other, upto(other.size()), upto(12));
            break;
        }
      }
      ASSERT_NO_THROW(GetParam().run(damaged)) << damaged;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, testing::ValuesIn(kTargets),
                         [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace sextant::fuzz
