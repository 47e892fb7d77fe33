#include "runtime/execution/rank_groups.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

// Equal on all members of a group, and in an order that all ranks agree on.
RankGroups::Key RankGroups::key(const Op& op) const {
  const auto kind = static_cast<std::uint32_t>(group_kind(op));
  if (kind == static_cast<std::uint32_t>(GroupKind::ends)) return {op.lanes[0], 1000 + op.lanes[1]};
  if (kind == static_cast<std::uint32_t>(GroupKind::world)) return {kNoLane, kind};  // one for all stages
  return {op.lanes[0], kind};
}

RankGroups::RankGroups(const ExecutionGraph& graph, Communicator& world) : graph_(graph) {
  const ParallelPlan& plan = graph.plan;
  if (world.size() != plan.world())
    throw BackendError(fmt::format("the plan needs {} ranks, {} are running", plan.world(), world.size()));
  const RankGrid grid(plan);
  const RankCoord self = grid.coord(world.rank());
  stage_ = self.pp;

  std::map<Key, const Op*> needed;
  for (const Op& op : graph.ops)
    if (group_kind(op) != GroupKind::none) needed.emplace(key(op), &op);
  for (const auto& [where, op] : needed) {
    const auto kind = group_kind(*op);
    const bool mine = kind == GroupKind::world || graph.lanes[op->lanes[0]].stage == stage_ ||
                      (kind == GroupKind::ends && graph.lanes[op->lanes[1]].stage == stage_);
    if (mine) groups_[where] = world.group(group_members(graph, grid, self, *op));
  }
}

Communicator* RankGroups::of(OpId id) const {
  const Op& op = graph_.ops[id];
  return group_kind(op) == GroupKind::none ? nullptr : groups_.at(key(op)).get();
}

}  // namespace sextant
