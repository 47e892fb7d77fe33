#include "core/graph/op_groups.hpp"

#include <numeric>

namespace sextant {

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

bool left_out(const ParallelPlan& plan, const Op& op, int replica) {
  return !plan.replica_microbatches.empty() && op.microbatch != kNone16 &&
         op.microbatch >= plan.replica_microbatches[static_cast<std::size_t>(replica)];
}

bool computes_alone(const Op& op) {
  return group_kind(op) == GroupKind::none && op.role != OpRole::copy_in && op.role != OpRole::copy_out;
}

bool works_on_slice(const Op& op) {
  const bool of_tied_head = op.microbatch == kNone16;  // whole
  return op.role == OpRole::update || op.role == OpRole::norm_partial ||
         (op.role == OpRole::grad_accumulate && !of_tied_head);
}

std::vector<int> group_members(const ExecutionGraph& graph, const RankGrid& grid, const RankCoord& self,
                               const Op& op) {
  const ParallelPlan& plan = graph.plan;
  switch (const GroupKind kind = group_kind(op)) {
    case GroupKind::none:
      return {};
    case GroupKind::tp:
      return grid.group(self, {Axis::tp});
    case GroupKind::cp:
      return grid.group(self, {Axis::cp});
    case GroupKind::world: {
      std::vector<int> all(static_cast<std::size_t>(plan.world()));
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    case GroupKind::ends: {
      RankCoord from = self, to = self;
      from.pp = graph.lanes[op.lanes[0]].stage;
      to.pp = graph.lanes[op.lanes[1]].stage;
      return {grid.rank(from), grid.rank(to)};
    }
    case GroupKind::shard:
    case GroupKind::replica: {
      const auto replicas = grid.group(self, {Axis::cp, Axis::dp});
      const int shards = plan.shards() > 1 ? plan.shards() : plan.replicas();
      const int index = self.dp * plan.cp + self.cp;
      std::vector<int> out;
      for (int i = 0; i < plan.replicas(); ++i)
        if (kind == GroupKind::shard ? i / shards == index / shards : i % shards == index % shards)
          out.push_back(replicas[static_cast<std::size_t>(i)]);
      return out;
    }
  }
  return {};
}

}  // namespace sextant
