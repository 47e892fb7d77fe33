// The links that a layout's communicators get on a cluster: asked once of the topology, then carried as a value, so
// that lowering and bounding many layouts of the same placement ask no graph.
#pragma once

#include <vector>

#include "core/group_shape.hpp"
#include "core/parallel_plan.hpp"
#include "core/topology.hpp"

namespace sextant {

struct StageLinks {
  GroupShape tp, cp;
  GroupShape shard;    // ranks over which a bucket is sharded (all replicas when nothing is sharded)
  GroupShape replica;  // ranks that hold the same slice, with hybrid sharding; size 1 otherwise
  GroupShape next;     // this stage to its successor
  bool operator==(const StageLinks&) const = default;
};

struct PlanLinks {
  std::vector<StageLinks> stages;  // one entry when all stages are equal
  GroupShape world;
  GroupShape tied;  // first and last stage
  const StageLinks& of(int stage) const {
    return stages[stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  }
};

PlanLinks plan_links(const Topology&, const ParallelPlan&);
// The same, given those of the plan without sharding: only the groups of shards and replicas are asked for.
PlanLinks plan_links(const Topology&, const ParallelPlan&, PlanLinks unsharded);

}  // namespace sextant
