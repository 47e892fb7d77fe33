#include "planner/search/stage_split.hpp"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/arbitrary.hpp"

namespace sextant {
namespace {

double chunk_time(const std::vector<LayerRange>& chunks, std::size_t i, const ChainCost& c) {
  return chunks[i].count * c.layer + (i == 0 ? c.embedding : 0) + (i + 1 == chunks.size() ? c.head : 0);
}
double slowest(const std::vector<LayerRange>& chunks, const ChainCost& c) {
  double most = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) most = std::max(most, chunk_time(chunks, i, c));
  return most;
}

// The slowest chunk by dynamic programming over the chain, which knows nothing of equal layers.
double least_slowest(int n_layers, int n_chunks, const ChainCost& c) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> best(static_cast<std::size_t>(n_layers) + 1, kNever);
  best[0] = 0;
  for (int k = 0; k < n_chunks; ++k) {
    std::vector<double> next(best.size(), kNever);
    const int least = k == 0 || k + 1 == n_chunks ? 0 : 1;
    for (int from = 0; from <= n_layers; ++from)
      for (int to = from + least; to <= n_layers; ++to)
        next[static_cast<std::size_t>(to)] = std::min(
            next[static_cast<std::size_t>(to)],
            std::max(best[static_cast<std::size_t>(from)],
                     (to - from) * c.layer + (k == 0 ? c.embedding : 0) + (k + 1 == n_chunks ? c.head : 0)));
    best = std::move(next);
  }
  return best.back();
}

RC_GTEST_PROP(StageSplit, IsAsFastAsAnySplit, ()) {
  using arbitrary::upto;
  const int n_layers = upto(1, 40), n_chunks = upto(1, std::min(n_layers + 2, 24));
  const ChainCost cost{1.0 + upto(0, 5), 0.25 * upto(0, 40), 0.25 * upto(0, 200)};
  const auto chunks = balanced_chunks(n_layers, n_chunks, cost);
  RC_ASSERT(static_cast<int>(chunks.size()) == n_chunks);
  int next = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    RC_ASSERT(chunks[i].first == next);
    RC_ASSERT(chunks[i].count >= (i == 0 || i + 1 == chunks.size() ? 0 : 1));
    next += chunks[i].count;
  }
  RC_ASSERT(next == n_layers);
  RC_ASSERT(std::abs(slowest(chunks, cost) - least_slowest(n_layers, n_chunks, cost)) < 1e-9);
}

TEST(StageSplit, GivesTheHeadAStageWithFewerLayers) {
  // A head worth three layers and an embedding worth none: 4 stages of 13 layers.
  const auto chunks = balanced_chunks(13, 4, {1, 0, 3});
  EXPECT_EQ(chunks, chunks_of({4, 4, 4, 1}));
  EXPECT_LT(slowest(chunks, {1, 0, 3}), slowest(chunks_of({4, 3, 3, 3}), {1, 0, 3}));
  EXPECT_EQ(balanced_chunks(16, 4, {1, 0, 0}), chunks_of({4, 4, 4, 4}));
}

// Chunks of unequal speed, against dynamic programming over their own costs.
RC_GTEST_PROP(BalancedChunks, OfUnequalSpeedAreAsFastAsCanBe, ()) {
  using arbitrary::upto;
  const int n = upto(1, 10), n_layers = upto(std::max(1, n - 2), 40);
  std::vector<double> layer;
  for (int c = 0; c < n; ++c) layer.push_back(upto(1, 5));
  const double embedding = upto(0, 6), head = upto(0, 12);
  const auto ends = [&](int c, int layers) {
    return layers * layer[static_cast<std::size_t>(c)] + (c == 0 ? embedding : 0) + (c + 1 == n ? head : 0);
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> best(static_cast<std::size_t>(n_layers) + 1, kNever);
  best[0] = 0;
  for (int c = 0; c < n; ++c) {
    std::vector<double> next(best.size(), kNever);
    for (int from = 0; from <= n_layers; ++from)
      for (int to = from + (c == 0 || c + 1 == n ? 0 : 1); to <= n_layers; ++to) {
        double& at = next[static_cast<std::size_t>(to)];
        at = std::min(at, std::max(best[static_cast<std::size_t>(from)], ends(c, to - from)));
      }
    best = std::move(next);
  }
  std::vector<LayerRange> chunks;
  balanced_chunks(n_layers, layer, embedding, head, chunks);
  RC_ASSERT(static_cast<int>(chunks.size()) == n);
  double most = 0;
  int next = 0;
  for (int c = 0; c < n; ++c) {
    const LayerRange& range = chunks[static_cast<std::size_t>(c)];
    RC_ASSERT(range.first == next);
    next += range.count;
    most = std::max(most, ends(c, range.count));
  }
  RC_ASSERT(next == n_layers);
  RC_ASSERT(most == best.back());
}

}  // namespace
}  // namespace sextant
