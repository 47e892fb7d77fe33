#include "planner/search/layer_moves.hpp"

#include <algorithm>
#include <vector>

#include "core/plan/stage_cuts.hpp"

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

// Of cuts whose stages between the first and the last are alike: the ends give each other a layer of each chunk, or take one from
// each stage between, or give it.
std::vector<ParallelPlan> ends_moved(const ParallelPlan& from, const ModelSpec& m) {
  std::vector<ParallelPlan> out;
  const auto add = [&](const std::vector<int>& counts) {
    ParallelPlan p = with_counts(from, counts, m.n_layers);
    const bool filled = std::ranges::all_of(counts, [](int layers) { return layers > 0; });
    if (filled && can_cut(UnevenStages::ends, p, m)) out.push_back(std::move(p));
  };
  const std::vector<int> first_chunks = layer_counts(layer_ranges(from, m.n_layers));
  const int pp = from.pp, inner = pp - 2;
  const auto moved = [&](int first, int each, int last) {
    std::vector<int> counts = first_chunks;
    for (int c = 0; c < pp * from.vp; ++c)
      counts[static_cast<std::size_t>(c)] += c % pp == 0 ? first : c % pp == pp - 1 ? last : each;
    add(counts);
  };
  moved(1, 0, -1);
  moved(-1, 0, 1);
  for (int share = 0; inner > 0 && share <= inner; ++share) {
    moved(-share, 1, share - inner);
    moved(share, -1, inner - share);
  }
  return out;
}

std::vector<ParallelPlan> other_cuts(const ParallelPlan& from, const ModelSpec& m, UnevenStages able) {
  std::vector<ParallelPlan> out;
  for (const auto& cut : ruled_cuts(able, from.pp, from.vp, m))
    out.push_back(with_counts(from, cut, m.n_layers));
  std::erase_if(out, [&](const ParallelPlan& p) { return p.chunks == from.chunks; });
  return out;
}

std::vector<ParallelPlan> one_layer_moved(const ParallelPlan& from, int n_layers) {
  std::vector<int> counts = layer_counts(layer_ranges(from, n_layers));
  std::vector<ParallelPlan> out;
  for (std::size_t giver = 0; giver < counts.size(); ++giver)
    for (std::size_t taker = 0; taker < counts.size(); ++taker) {
      if (giver == taker || counts[giver] == 0) continue;
      --counts[giver];
      ++counts[taker];
      out.push_back(with_counts(from, counts, n_layers));
      ++counts[giver];
      --counts[taker];
    }
  return out;
}

std::vector<ParallelPlan> next_to(const ParallelPlan& from, const ModelSpec& m, UnevenStages able) {
  if (cuts_by_rule(able, from.vp)) return other_cuts(from, m, able);
  return able == UnevenStages::ends ? ends_moved(from, m) : one_layer_moved(from, m.n_layers);
}

}  // namespace

std::optional<RefinedPlan> LayerMoves::climb(const ParallelPlan& from, double step) {
  const UnevenStages able = job_.stack.can.uneven_stages;
  if (from.pp * from.vp == 1 || able == UnevenStages::none) return std::nullopt;
  RefinedPlan at{from, step};
  bool moved = false;
  moves_.allow_slots();
  if (const auto alone = with_ends_alone(able, from, job_.model))
    if (auto next = moves_.fastest(at, {*alone})) {
      at = std::move(*next);
      moved = true;
    }
  while (auto next = moves_.fastest(at, next_to(at.plan, job_.model, able))) {
    at = std::move(*next);
    moved = true;
  }
  return moved ? std::optional(at) : std::nullopt;
}

}  // namespace sextant
