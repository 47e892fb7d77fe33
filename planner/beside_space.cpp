#include "planner/beside_space.hpp"

#include <algorithm>

#include "planner/layer_moves.hpp"
#include "planner/rung_moves.hpp"

namespace sextant {
namespace {

constexpr double kWithin = 1.1;  // of the best step, before anything is moved

}  // namespace

Beside beside_space(const Job& job, const SearchSpace& space, const SearchTree& tree, const Ranking& ranking,
                    const MoveMeans& means) {
  Beside out;
  RungMoves rungs(job, space, tree, means);
  LayerMoves layers(job, tree, means);
  const bool cut_is_pinned =
      std::ranges::count(space.limits.limits, PlanField::stage_split, &PlanLimit::field) > 0;
  std::vector<Simulated> families = ranking.families();
  families.resize(std::min(families.size(), std::size_t{kMovedFamilies}));
  for (const Simulated& from : families) {
    if (from.step > kWithin * ranking.best().step) break;
    MovedMember m{from, {tree.plan(from.choice, means.cache()), from.step}};
    if (auto found = rungs.climb(m.found.plan, m.found.step)) m.found = std::move(*found), m.off_rungs = true;
    if (!cut_is_pinned && m.found.plan.pp * m.found.plan.vp > 1)
      if (auto found = layers.climb(m.found.plan, m.found.step))
        m.before_layers = m.found.step, m.found = std::move(*found);
    if (m.off_rungs || m.before_layers) out.moved.push_back(std::move(m));
  }
  out.cut_anew = layers.simulated(), out.between_rungs = rungs.simulated();
  return out;
}

}  // namespace sextant
