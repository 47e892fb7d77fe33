#include "planner/search/off_grid.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "planner/search/grid_refinement.hpp"
#include "planner/search/layer_moves.hpp"

namespace sextant {
namespace {

constexpr double kWithin = 1.1;             // of the best step, before anything is moved
constexpr std::size_t kMovedDivisions = 5;  // more, behind the fastest families

// The fastest families, then the fastest of other divisions of the GPUs: families are often much alike.
std::vector<Simulated> starts(const SearchSpace& space, const Ranking& ranking) {
  std::vector<Simulated> out;
  std::set<std::array<int, 3>> divisions;
  std::size_t more = 0;
  for (const Simulated& s : ranking.families()) {
    if (s.step > kWithin * ranking.best().step || more == kMovedDivisions) break;
    const ParallelPlan p = plan_of(space, s.choice);
    const bool is_new = divisions.insert({p.tp, p.cp, p.pp}).second;
    if (out.size() >= std::size_t{kMovedFamilies}) {
      if (!is_new) continue;
      ++more;
    }
    out.push_back(s);
  }
  return out;
}

}  // namespace

OffGrid off_grid(const Job& job, const SearchSpace& space, const SearchTree& tree, const Ranking& ranking,
                 const MoveMeans& means) {
  OffGrid out;
  GridRefinement grid(job, space, tree, means);
  LayerMoves layers(job, tree, means);
  const bool cut_is_pinned =
      std::ranges::count(space.limits.limits, PlanField::stage_split, &PlanLimit::field) > 0;
  for (const Simulated& from : starts(space, ranking)) {
    MovedMember m{from, {tree.plan(from.choice, means.cache()), from.step}};
    double by_layers = 1;  // what is left of the step
    for (bool cut = true; cut && !means.stopped();) {
      if (auto found = grid.climb(m.found.plan, m.found.step)) {
        m.found = std::move(*found);
        m.off_grid = true;
      }
      cut = false;
      if (cut_is_pinned || m.found.plan.pp * m.found.plan.vp == 1) continue;
      if (auto found = layers.climb(m.found.plan, m.found.step)) {
        by_layers *= found->step / m.found.step;
        m.found = std::move(*found);
        cut = true;
      }
    }
    if (by_layers < 1) m.before_layers = m.found.step / by_layers;
    if (m.off_grid || m.before_layers) out.moved.push_back(std::move(m));
  }
  out.cut_anew = layers.simulated();
  out.refined = grid.simulated();
  return out;
}

}  // namespace sextant
