#include "planner/layer_moves.hpp"

#include <algorithm>
#include <vector>

#include "planner/each.hpp"

namespace sextant {
namespace {

constexpr double kWorth = 1e-4;     // share of the step that a move must gain
constexpr std::size_t kBatch = 8;   // moves simulated together
constexpr std::size_t kTried = 3;   // batches without a gain
constexpr double kBuckets = 4000;   // slots walked in the time in which a cut's buckets are laid out
constexpr double kSimulation = 40;  // slots walked by a bound in the time of a slot simulated

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

}  // namespace

std::optional<MovedLayers> LayerMoves::climb(const ParallelPlan& from, double step) {
  if (from.pp * from.vp == 1 || !job_.stack.can.uneven_stages) return std::nullopt;
  MovedLayers at{from, step};
  bool moved = false;
  while (auto next = step_from(at)) at = std::move(*next), moved = true;
  return moved ? std::optional(at) : std::nullopt;
}

// The fastest of the most promising moves.
std::optional<MovedLayers> LayerMoves::step_from(const MovedLayers& at) {
  const int n_layers = job_.model.n_layers;
  std::vector<int> counts;
  for (const LayerRange& range : layer_ranges(at.plan, n_layers)) counts.push_back(range.count);
  const double slots = 2.0 * static_cast<double>(counts.size()) * microbatches(at.plan, job_.training);
  const double pairs = static_cast<double>(counts.size() * (counts.size() - 1));
  slots_left_ -= pairs * (kBuckets + slots);
  if (slots_left_ < 0) return std::nullopt;

  struct Move {
    ParallelPlan plan;
    std::optional<double> bound;
    std::size_t at = 0;
  };
  std::vector<Move> moves;
  for (std::size_t from = 0; from < counts.size(); ++from)
    for (std::size_t to = 0; to < counts.size(); ++to) {
      if (from == to || counts[from] == 0) continue;
      --counts[from], ++counts[to];
      moves.push_back({with_counts(at.plan, counts, n_layers), std::nullopt, moves.size()});
      ++counts[from], --counts[to];
    }
  const double limit = at.step * (1 - kWorth);
  each(moves.size(), [&](std::size_t i) {
    if (!means_.stopped()) moves[i].bound = tree_.bound(moves[i].plan, limit, means_.cache());
  });
  std::erase_if(moves, [](const Move& move) { return !move.bound; });
  std::ranges::sort(moves, [](const Move& a, const Move& b) {
    return a.bound != b.bound ? *a.bound < *b.bound : a.at < b.at;
  });

  for (std::size_t begin = 0; begin < std::min(moves.size(), kTried * kBatch); begin += kBatch) {
    const std::size_t n = std::min(kBatch, moves.size() - begin);
    if (means_.stopped() || slots_left_ < static_cast<double>(n) * slots * kSimulation) return std::nullopt;
    slots_left_ -= static_cast<double>(n) * slots * kSimulation;
    simulated_ += n;
    std::vector<double> steps(n, INFINITY);
    each(n, [&](std::size_t i) {
      if (tree_.fits(moves[begin + i].plan)) steps[i] = means_.simulated(moves[begin + i].plan);
    });
    const auto best = static_cast<std::size_t>(std::ranges::min_element(steps) - steps.begin());
    if (steps[best] < limit) return MovedLayers{moves[begin + best].plan, steps[best]};
  }
  return std::nullopt;
}

}  // namespace sextant
