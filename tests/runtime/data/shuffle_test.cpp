// Orders without a memory are orders: every place once, another seed another order, shares as weighted.
#include "runtime/data/shuffle.hpp"

#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace sextant {
namespace {

RC_GTEST_PROP(Shuffle, VisitsEveryPlaceOnce, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(1, 3000);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  std::vector<bool> seen(static_cast<std::size_t>(count), false);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t to = permuted(i, count, seed);
    RC_ASSERT(to >= 0 && to < count);
    RC_ASSERT(!seen[static_cast<std::size_t>(to)]);
    seen[static_cast<std::size_t>(to)] = true;
  }
}

TEST(Shuffle, LooksShuffled) {
  constexpr std::int64_t kCount = 10000;
  // Neighbours stay neighbours in about 2 of 10000 pairs; places keep no correlation with where they go.
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    int neighbours = 0;
    double product = 0;
    for (std::int64_t i = 0; i + 1 < kCount; ++i) {
      neighbours += std::abs(permuted(i, kCount, seed) - permuted(i + 1, kCount, seed)) == 1;
      product += (static_cast<double>(i) / kCount - 0.5) *
                 (static_cast<double>(permuted(i, kCount, seed)) / kCount - 0.5);
    }
    EXPECT_LT(neighbours, 20);
    EXPECT_LT(std::abs(product / kCount * 12), 0.05) << "of 1 for the identity";
  }
  int same = 0;
  for (std::int64_t i = 0; i < kCount; ++i) same += permuted(i, kCount, 1) == permuted(i, kCount, 2);
  EXPECT_LT(same, 20);
  EXPECT_EQ(permuted(0, 1, 7), 0);
  EXPECT_LT(permuted(123456789012, 1000000000000, 5), 1000000000000);
}

TEST(Mixture, SharesAndCounts) {
  const std::vector<double> weights = {7, 1, 2};
  const Mixture mixture(weights, 3);
  std::vector<std::int64_t> next(3, 0);
  std::vector<std::set<std::int64_t>> seen(3);
  constexpr std::int64_t kSamples = 3 * 65536;
  std::vector<std::int64_t> early(3, 0);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const auto [part, index] = mixture.at(i);
    ASSERT_TRUE(seen[part].insert(index).second) << "a sample of a part twice";
    if (i < 1000) ++early[part];
  }
  for (std::size_t p = 0; p < 3; ++p) {
    EXPECT_NEAR(static_cast<double>(seen[p].size()) / kSamples, weights[p] / 10, 1.0 / 65536);
    EXPECT_EQ(*seen[p].rbegin(), static_cast<std::int64_t>(seen[p].size()) - 1) << "none left out";
    EXPECT_NEAR(static_cast<double>(early[p]) / 1000, weights[p] / 10, 0.06) << "also of the first few";
  }
  const Mixture one({5.0}, 3);
  EXPECT_EQ(one.at(99).index, 99);
}

}  // namespace
}  // namespace sextant
