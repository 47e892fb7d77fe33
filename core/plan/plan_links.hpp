// The links that a layout's communicators get on a cluster: asked once of the topology, then carried as a value, so
// that lowering and bounding many layouts of the same placement ask no graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/cluster/group_shape.hpp"
#include "core/cluster/topology.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

struct StageLinks {
  GroupShape tp, cp;
  GroupShape shard;    // ranks over which a bucket is sharded (all replicas when nothing is sharded)
  GroupShape replica;  // ranks that hold the same slice, with hybrid sharding; size 1 otherwise
  GroupShape next;     // this stage to its successor
  bool operator==(const StageLinks&) const = default;
};

struct PlanLinks {
  std::vector<StageLinks> stages;       // that differ; at least one
  std::vector<std::uint16_t> of_stage;  // which of them; empty when all stages are equal
  GroupShape world;
  GroupShape tied;  // first and last stage
  std::size_t index(int stage) const {
    return of_stage.empty() ? 0 : of_stage[static_cast<std::size_t>(stage)];
  }
  const StageLinks& of(int stage) const { return stages[index(stage)]; }
  bool operator==(const PlanLinks&) const = default;
};

PlanLinks plan_links(const Topology&, const ParallelPlan&);
// The same, given those of the plan without sharding: only the groups of shards and replicas are asked for.
PlanLinks plan_links(const Topology&, const ParallelPlan&, PlanLinks unsharded);

}  // namespace sextant
