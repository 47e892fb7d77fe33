#include "core/plan_links.hpp"

#include <algorithm>
#include <utility>

namespace sextant {
namespace {

// Replicas are the ranks along cp (innermost) and dp.
std::vector<int> strided(const std::vector<int>& ranks, std::size_t first, std::size_t count,
                         std::size_t stride) {
  std::vector<int> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i) out.push_back(ranks[first + i * stride]);
  return out;
}

// Groups of the kind that lie in the same node as this one and use its NICs at the same time.
int concurrent_groups(const Topology& topology, const std::vector<int>& group, int node_gpus) {
  int in_node = 0;
  for (int rank : group) in_node += topology.node_of(rank) == topology.node_of(group.front()) ? 1 : 0;
  return std::max(1, node_gpus / std::max(1, in_node));
}

// Those of the stage, as if nothing were sharded.
StageLinks stage_links(const Topology& topology, const ParallelPlan& plan, const RankGrid& grid, int stage) {
  StageLinks links;
  if (plan.tp > 1) links.tp = topology.group(grid, {Axis::tp}, stage);
  if (plan.cp > 1) links.cp = topology.group(grid, {Axis::cp}, stage);
  if (plan.pp > 1) links.next = topology.stage_link(grid, stage);
  if (plan.replicas() > 1) links.shard = topology.group(grid, {Axis::cp, Axis::dp}, stage);
  return links;
}

// Shards are consecutive replicas; a replica group takes one rank from each.
void shard(const Topology& topology, const ParallelPlan& plan, const RankGrid& grid, int stage,
           StageLinks& links) {
  RankCoord origin;
  origin.pp = stage;
  const std::vector<int> replicas = grid.group(origin, {Axis::cp, Axis::dp});
  const auto n = static_cast<std::size_t>(plan.shards());
  int node_gpus = 0;
  while (node_gpus < topology.ranks() && topology.node_of(node_gpus) == topology.node_of(0)) ++node_gpus;
  const auto shard_group = strided(replicas, 0, n, 1);
  const auto replica_group = strided(replicas, 0, replicas.size() / n, n);
  links.shard = topology.group_of(shard_group, concurrent_groups(topology, shard_group, node_gpus));
  links.replica = topology.group_of(replica_group, concurrent_groups(topology, replica_group, node_gpus));
}

void fold_equal(std::vector<StageLinks>& stages) {
  const bool equal =
      std::all_of(stages.begin(), stages.end(), [&](const StageLinks& s) { return s == stages.front(); });
  if (equal) stages.resize(1);
}

}  // namespace

PlanLinks plan_links(const Topology& topology, const ParallelPlan& plan) {
  const RankGrid grid(plan);
  PlanLinks out;
  const bool alike = topology.stages_alike(grid);
  for (int stage = 0; stage < plan.pp; ++stage) {
    if (!alike || stage == 0) {
      out.stages.push_back(stage_links(topology, plan, grid, stage));
      continue;
    }
    out.stages.push_back(out.stages.front());
    if (stage + 1 == plan.pp) out.stages.back().next = topology.stage_link(grid, stage);
  }
  fold_equal(out.stages);
  if (plan.world() > 1) out.world = topology.group(grid, {Axis::tp, Axis::cp, Axis::dp, Axis::pp});
  if (plan.pp > 1) {
    RankCoord last;
    last.pp = plan.pp - 1;
    const int ends[] = {grid.rank({}), grid.rank(last)};
    out.tied = topology.group_of(ends, 1);
  }
  return plan_links(topology, plan, std::move(out));
}

PlanLinks plan_links(const Topology& topology, const ParallelPlan& plan, PlanLinks unsharded) {
  if (plan.shards() == 1 || plan.shards() == plan.replicas()) return unsharded;
  const RankGrid grid(plan);
  const bool alike = topology.stages_alike(grid);
  std::vector<StageLinks> stages;
  for (int stage = 0; stage < plan.pp; ++stage) {
    stages.push_back(unsharded.of(stage));
    StageLinks& links = stages.back();
    if (stage == 0 || !alike)
      shard(topology, plan, grid, stage, links);
    else
      links.shard = stages.front().shard, links.replica = stages.front().replica;
  }
  fold_equal(stages);
  unsharded.stages = std::move(stages);
  return unsharded;
}

}  // namespace sextant
