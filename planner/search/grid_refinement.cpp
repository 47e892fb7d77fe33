#include "planner/search/grid_refinement.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/graph/parameter_layout.hpp"

namespace sextant {
namespace {

constexpr std::uint64_t kMostMoves = 1500;  // simulations, of all climbs
constexpr std::uint64_t kClimb = 150;

constexpr std::int64_t kLeastBucket = 1'000'000;

enum class MovedFields : std::uint8_t { one, two };
enum GridField : std::uint8_t { recomputed, on_host, share, horizon };
constexpr std::size_t kGridFields = 4;
using GridValues = std::array<int, kGridFields>;
constexpr std::array<PlanField, kGridFields> kGridFieldOf = {
    PlanField::recompute_layers, PlanField::activation_offload, PlanField::optimizer_offload,
    PlanField::offload_horizon};

// The grid values of the space, as one member's other fields leave them.
class SearchGrid {
 public:
  SearchGrid(const Job& job, const SearchSpace& space, const ParallelPlan& from)
      : space_(space), has_buckets_(bucket_limit(from, job.stack.rules) > 0) {
    for (const LayerRange& range : layer_ranges(from, job.model.n_layers))
      layers_ = std::max(layers_, range.count);
    for (const Recompute& r : space.recompute)
      if (r.kind == from.recompute.kind) grid_[recomputed].push_back(layers_of(r));
    for (const ActivationOffload& a : space.activation_offload) {
      grid_[on_host].push_back(a.of_chunk(layers_));
      if ((a.layers > 0) == (from.activation_offload > 0)) grid_[horizon].push_back(a.horizon);
    }
    for (const double s : space.optimizer_offload)
      grid_[share].push_back(static_cast<int>(std::lround(100 * s)));
    for (std::vector<int>& list : grid_) {
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }

  // 0 for what stays where it is: what the question pins, or keeps at nothing.
  GridValues first_steps(const ParallelPlan& from) const {
    GridValues steps{};
    const GridValues at = values_of(from);
    for (std::size_t f = 0; f < kGridFields; ++f)
      if (!space_.limits.pins(kGridFieldOf[f]) && grid_[f].back() > 0)
        steps[f] = first_step(grid_[f], at[f], most(f));
    steps[horizon] = std::min(steps[horizon], 1);  // what is far ahead only takes room
    return steps;
  }

  // One field alone; or two by whatever steps, so that one makes the room which the other takes.
  std::vector<ParallelPlan> next_to(const ParallelPlan& plan, const GridValues& steps,
                                    MovedFields which) const {
    const bool pairs = which == MovedFields::two;
    std::vector<ParallelPlan> out;
    const GridValues at = values_of(plan);
    const auto add_to = [&](const ParallelPlan& p, const GridValues& to) {
      if (!lies(to)) return;
      if (const ParallelPlan moved = with(p, to); !space_.idle_horizon(moved)) out.push_back(moved);
    };
    const auto add = [&](const GridValues& to) {
      if (!is_member(to)) add_to(plan, to);
    };
    for (const std::int64_t n : space_.bucket_elements) {
      if (pairs || !has_buckets_ || n == plan.bucket_elements) continue;
      out.push_back(plan);
      out.back().bucket_elements = n;
    }
    for (const ParallelPlan& turned : turns(plan)) {
      if (!pairs) out.push_back(turned);
      for (const GridField f : {on_host, share})
        for (int x = pairs ? steps[f] : 0; x > 0; x /= 2)
          for (const int sign : {-1, 1}) {
            GridValues to = at;
            to[f] += sign * x;
            add_to(turned, to);
          }
    }
    for (std::size_t a = 0; a < kGridFields; ++a)
      for (const int sign : {-1, 1}) {
        GridValues to = at;
        to[a] += sign * steps[a];
        if (!pairs && steps[a] > 0) add(to);
        for (std::size_t b = a + 1; pairs && b < kGridFields; ++b)
          for (int x = steps[a]; x > 0; x /= 2)
            for (int y = steps[b]; y > 0; y /= 2) {
              to = at;
              to[a] += sign * x;
              to[b] += (b == horizon ? sign : -sign) * y;
              add(to);
            }
      }
    return out;
  }

 private:
  // What else decides how much must be on the host: kinds of recomputation, the next shard degrees and buckets.
  std::vector<ParallelPlan> turns(const ParallelPlan& plan) const {
    std::vector<ParallelPlan> out;
    for (const Recompute r : {Recompute{RecomputeKind::none, -1}, Recompute{RecomputeKind::selective, -1},
                              Recompute{RecomputeKind::full, 1}}) {
      if (r.kind == plan.recompute.kind ||
          std::ranges::count(space_.recompute, r.kind, &Recompute::kind) == 0)
        continue;
      out.push_back(plan);
      out.back().recompute = r;
    }
    for (const std::int64_t n : {plan.bucket_elements / 2, 2 * plan.bucket_elements}) {
      if (!has_buckets_ || n < kLeastBucket) continue;
      out.push_back(plan);
      out.back().bucket_elements = n;
    }
    const int shards = plan.shards(), all = plan.replicas();
    if (plan.zero_stage == 0) return out;
    for (const int n : {shards / 2, 2 * shards}) {
      if (n < 1 || all % n != 0 || n == shards) continue;
      out.push_back(plan);
      out.back().shard_degree = n == all ? 0 : n;
    }
    return out;
  }
  int layers_of(const Recompute& r) const {
    return r.kind != RecomputeKind::full ? 0 : r.layers < 0 ? layers_ : r.layers;
  }
  int most(std::size_t field) const { return field == share ? 100 : layers_; }
  GridValues values_of(const ParallelPlan& p) const {
    return {layers_of(p.recompute), p.activation_offload,
            static_cast<int>(std::lround(100 * p.optimizer_offload)), p.offload_horizon};
  }
  ParallelPlan with(ParallelPlan p, const GridValues& to) const {
    if (p.recompute.kind == RecomputeKind::full)
      p.recompute.layers = to[recomputed] >= layers_ ? -1 : std::max(1, to[recomputed]);
    p.activation_offload = to[on_host];
    p.offload_horizon = to[horizon];
    if (to[share] != values_of(p)[share]) p.optimizer_offload = to[share] / 100.0;
    return p;
  }
  bool lies(const GridValues& to) const {
    for (std::size_t f = 0; f < kGridFields; ++f)
      if (to[f] < (f == recomputed || f == horizon ? std::min(1, grid_[f].back()) : 0) || to[f] > most(f))
        return false;
    return true;
  }
  bool is_member(const GridValues& to) const {
    for (std::size_t f = 0; f < kGridFields; ++f)
      if (!std::ranges::binary_search(grid_[f], to[f])) return false;
    return true;
  }
  // The largest power of two below the gap between grid values.
  static int first_step(const std::vector<int>& grid, int at, int most) {
    const auto above = std::ranges::upper_bound(grid, at);
    const auto from = std::ranges::lower_bound(grid, at);
    const int below = from == grid.begin() ? 0 : *(from - 1);
    const int gap = std::max(at - below, (above == grid.end() ? most : *above) - at);
    int step = 1;
    while (2 * step < gap) step *= 2;
    return step;
  }

  const SearchSpace& space_;
  bool has_buckets_;
  std::array<std::vector<int>, kGridFields> grid_;  // ascending
  int layers_ = 0;                                  // of the largest chunk
};

}  // namespace

std::optional<RefinedPlan> GridRefinement::climb(const ParallelPlan& from, double step) {
  std::optional<SearchGrid> grid;  // of a kind of recomputation
  GridValues first{}, steps{};
  RefinedPlan at{from, step};
  const auto begin = [&] {
    grid.emplace(job_, space_, at.plan);
    steps = first = grid->first_steps(at.plan);
  };
  begin();
  moves_.allow(std::min(kClimb, kMostMoves - std::min(kMostMoves, simulated())));
  bool moved = false;
  const auto better = [&](MovedFields which) {
    const RecomputeKind kind = at.plan.recompute.kind;
    auto next = moves_.fastest(at, grid->next_to(at.plan, which == MovedFields::two ? first : steps, which));
    if (!next) return false;
    at = std::move(*next);
    if (at.plan.recompute.kind != kind) begin();
    return moved = true;
  };
  for (bool any = true; any && moves_.left() > 0 && !moves_.stopped();) {
    if (better(MovedFields::one)) continue;
    any = false;
    for (int& s : steps) {
      any = any || s > 1;
      s = s > 1 ? s / 2 : s;
    }
    if (!any) any = better(MovedFields::two);
  }
  return moved ? std::optional(at) : std::nullopt;
}

}  // namespace sextant
