// The twenty questions whose fastest layouts on paper nobody should run: what is recommended instead. Five of them, every second
// machine under one stack or the other; all of them nightly.
#include "tests/support/whole_grid.hpp"
#include "tests/tools/verbs/recommended_questions.hpp"

namespace sextant {
namespace {

TEST(RecommendedBars, TwentyQuestions) {
  constexpr OrdinaryQuestion kQuestions[] = {
      {"llama-2-7b", "1x8xa100-80gb", "4096", "128"},    {"llama-2-13b", "8x8xa100-80gb", "4096", "1024"},
      {"llama-2-70b", "16x8xa100-80gb", "4096", "1024"}, {"llama-3.1-8b", "1x8xh100", "8192", "128"},
      {"llama-3.1-8b", "16x8xh100", "8192", "1024"},     {"llama-3.1-70b", "8x8xh100", "8192", "512"},
      {"llama-3.1-70b", "32x8xh100", "8192", "1024"},    {"llama-3.1-405b", "128x8xh100", "8192", "1024"},
      {"llama-65b", "16x8xa100-80gb", "2048", "1024"},   {"llama-3.2-1b", "1x4xh100", "4096", "256"}};
  int unusual = 0, at = 0;
  for (const OrdinaryQuestion& q : kQuestions) {
    const bool asked = ++at % 2 == 0, under_megatron = at % 4 == 0;
    for (const bool megatron : {true, false})
      if (testing::whole_grid() || (asked && megatron == under_megatron))
        unusual += holds_bars(q, megatron ? "megatron-core" : "torchtitan") ? 1 : 0;
  }
  EXPECT_LE(unusual, testing::whole_grid() ? 2 : 1);
}

}  // namespace
}  // namespace sextant
