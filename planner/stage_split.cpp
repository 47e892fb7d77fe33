#include "planner/stage_split.hpp"

#include <algorithm>
#include <limits>

#include "core/error.hpp"

namespace sextant {
namespace {

struct Chain {
  int n_layers, n_chunks;
  ChainCost cost;
  int least(int chunk) const { return chunk == 0 || chunk == n_chunks - 1 ? 0 : 1; }
  double time(int chunk, int layers) const {
    return layers * cost.layer + (chunk == 0 ? cost.embedding : 0) + (chunk == n_chunks - 1 ? cost.head : 0);
  }
  // A single chunk holds something anyway; with several, the outer ones may hold the embedding or head alone.
};

// Smallest possible time of the slowest chunk: best[i] = over chunks seen so far, holding i layers.
double smallest_maximum(const Chain& chain) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto n = static_cast<std::size_t>(chain.n_layers);
  std::vector<double> best(n + 1, kNever), next(n + 1);
  best[0] = 0;
  for (int c = 0; c < chain.n_chunks; ++c) {
    std::fill(next.begin(), next.end(), kNever);
    int from = 0;  // the best number of layers before this chunk never falls as more are placed
    for (int i = 0; i <= chain.n_layers; ++i) {
      const auto value = [&](int before) {
        return i - before < chain.least(c)
                   ? kNever
                   : std::max(best[static_cast<std::size_t>(before)], chain.time(c, i - before));
      };
      while (from + 1 <= i - chain.least(c) && value(from + 1) <= value(from)) ++from;
      next[static_cast<std::size_t>(i)] = value(from);
    }
    best.swap(next);
  }
  return best[n];
}

}  // namespace

std::vector<LayerRange> balanced_chunks(int n_layers, int n_chunks, const ChainCost& cost) {
  SEXTANT_CHECK(n_chunks >= 1 && n_chunks - 2 <= n_layers, "every inner chunk needs a layer");
  const Chain chain{n_layers, n_chunks, cost};
  const double limit = smallest_maximum(chain) * (1 + 1e-12);
  // Under that limit, the least sum of squares: the most even split. squares[c][i]: chunks 0..c-1 hold i layers.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto width = static_cast<std::size_t>(n_layers) + 1;
  std::vector<double> squares(width * (static_cast<std::size_t>(n_chunks) + 1), kNever);
  std::vector<int> taken(squares.size(), -1);
  squares[0] = 0;
  for (int c = 0; c < n_chunks; ++c) {
    const std::size_t row = static_cast<std::size_t>(c) * width;
    for (int before = 0; before <= n_layers; ++before) {
      const double so_far = squares[row + static_cast<std::size_t>(before)];
      if (so_far == kNever) continue;
      for (int count = chain.least(c); before + count <= n_layers; ++count) {
        const double time = chain.time(c, count);
        if (time > limit) break;
        const std::size_t at = row + width + static_cast<std::size_t>(before + count);
        if (so_far + time * time < squares[at]) squares[at] = so_far + time * time, taken[at] = count;
      }
    }
  }
  std::vector<int> layers(static_cast<std::size_t>(n_chunks));
  int left = n_layers;
  for (int c = n_chunks - 1; c >= 0; --c) {
    const int count = taken[(static_cast<std::size_t>(c) + 1) * width + static_cast<std::size_t>(left)];
    SEXTANT_CHECK(count >= 0, "the split must cover all layers");
    layers[static_cast<std::size_t>(c)] = count;
    left -= count;
  }
  return chunks_of(layers);
}

}  // namespace sextant
