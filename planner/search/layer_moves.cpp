#include "planner/search/layer_moves.hpp"

#include <vector>

namespace sextant {
namespace {

ParallelPlan with_counts(const ParallelPlan& from, const std::vector<int>& counts, int n_layers) {
  ParallelPlan p = from;
  p.chunks.clear();
  int first = 0;
  bool even = true;
  const int n = static_cast<int>(counts.size());
  for (int c = 0; c < n; ++c) {
    const int count = counts[static_cast<std::size_t>(c)];
    even = even && count == n_layers / n + (c < n_layers % n ? 1 : 0);
    p.chunks.push_back({first, count});
    first += count;
  }
  if (even) p.chunks.clear();
  return p;
}

std::vector<ParallelPlan> one_layer_moved(const ParallelPlan& from, int n_layers) {
  std::vector<int> counts;
  for (const LayerRange& range : layer_ranges(from, n_layers)) counts.push_back(range.count);
  std::vector<ParallelPlan> out;
  for (std::size_t giver = 0; giver < counts.size(); ++giver)
    for (std::size_t taker = 0; taker < counts.size(); ++taker) {
      if (giver == taker || counts[giver] == 0) continue;
      --counts[giver], ++counts[taker];
      out.push_back(with_counts(from, counts, n_layers));
      ++counts[giver], --counts[taker];
    }
  return out;
}

}  // namespace

std::optional<MovedPlan> LayerMoves::climb(const ParallelPlan& from, double step) {
  if (from.pp * from.vp == 1 || !job_.stack.can.uneven_stages) return std::nullopt;
  MovedPlan at{from, step};
  bool moved = false;
  moves_.allow_slots();
  while (auto next = moves_.fastest(at, one_layer_moved(at.plan, job_.model.n_layers)))
    at = std::move(*next), moved = true;
  return moved ? std::optional(at) : std::nullopt;
}

}  // namespace sextant
