#include "runtime/execution/rank_groups.hpp"

#include <numeric>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

namespace {

// The ranks of the group of this kind through `self`, in rank order along its axes.
std::vector<int> members(const ParallelPlan& plan, const RankGrid& grid, const RankCoord& self,
                         GroupKind kind) {
  if (kind == GroupKind::tp) return grid.group(self, {Axis::tp});
  if (kind == GroupKind::cp) return grid.group(self, {Axis::cp});
  if (kind == GroupKind::world) {
    std::vector<int> all(static_cast<std::size_t>(plan.world()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const auto replicas = grid.group(self, {Axis::cp, Axis::dp});
  const int shards = plan.shards() > 1 ? plan.shards() : plan.replicas();
  const int index = self.dp * plan.cp + self.cp;
  std::vector<int> out;
  for (int i = 0; i < plan.replicas(); ++i)
    if (kind == GroupKind::shard ? i / shards == index / shards : i % shards == index % shards)
      out.push_back(replicas[static_cast<std::size_t>(i)]);
  return out;
}

}  // namespace

GroupKind group_kind(const Op& op) {
  switch (op.role) {
    case OpRole::tp_gather:
    case OpRole::tp_scatter:
    case OpRole::tp_reduce:
    case OpRole::sp_reduce:
      return GroupKind::tp;
    case OpRole::cp_gather:
    case OpRole::cp_scatter:
      return GroupKind::cp;
    case OpRole::param_gather:
    case OpRole::grad_reduce:
      return GroupKind::shard;
    case OpRole::grad_replica_reduce:
      return GroupKind::replica;
    case OpRole::norm_reduce:
      return GroupKind::world;
    case OpRole::send:
    case OpRole::tied_reduce:
      return GroupKind::ends;
    case OpRole::block:
    case OpRole::grad_accumulate:
    case OpRole::norm_partial:
    case OpRole::update:
    case OpRole::copy_out:
    case OpRole::copy_in:
    case OpRole::zero_grad:
      break;
  }
  return GroupKind::none;
}

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
    if (kind == GroupKind::ends) {
      RankCoord from = self, to = self;
      from.pp = graph.lanes[op->lanes[0]].stage, to.pp = graph.lanes[op->lanes[1]].stage;
      if (stage_ != from.pp && stage_ != to.pp) continue;
      groups_[where] = world.group(std::vector<int>{grid.rank(from), grid.rank(to)});
    } else if (kind == GroupKind::world || graph.lanes[op->lanes[0]].stage == stage_) {
      groups_[where] = world.group(members(plan, grid, self, kind));
    }
  }
}

Communicator* RankGroups::of(OpId id) const {
  const Op& op = graph_.ops[id];
  return group_kind(op) == GroupKind::none ? nullptr : groups_.at(key(op)).get();
}

}  // namespace sextant
