#include "core/plan/plan_links.hpp"

#include <algorithm>
#include <utility>

namespace sextant {
namespace {

// Those of the stage, as if nothing were sharded.
StageLinks stage_links(const Topology& topology, const ParallelPlan& plan, const RankGrid& grid, int stage) {
  StageLinks links;
  if (plan.tp > 1) links.tp = topology.group(grid, {Axis::tp}, stage);
  if (plan.cp > 1) links.cp = topology.group(grid, {Axis::cp}, stage);
  if (plan.pp > 1) links.next = topology.stage_link(grid, stage);
  if (plan.replicas() > 1) links.shard = topology.replica_group(grid, stage);
  return links;
}

void fold_equal(PlanLinks& links) {
  auto& stages = links.stages;
  const bool equal =
      std::all_of(stages.begin(), stages.end(), [&](const StageLinks& s) { return s == stages.front(); });
  if (equal) {
    stages.resize(1);
    links.of_stage.clear();
  }
}

}  // namespace

PlanLinks plan_links(const Topology& topology, const ParallelPlan& plan) {
  const RankGrid grid(plan);
  PlanLinks out;
  const int period = topology.stage_period(grid), last_stage = plan.pp - 1;
  out.stages.reserve(static_cast<std::size_t>(period) + 1);
  for (int stage = 0; stage < period; ++stage) out.stages.push_back(stage_links(topology, plan, grid, stage));
  if (plan.pp > 1) {
    out.of_stage.reserve(static_cast<std::size_t>(plan.pp));
    for (int stage = 0; stage < plan.pp; ++stage)
      out.of_stage.push_back(static_cast<std::uint16_t>(stage % period));
    // The way from the last stage back to the first may be another than from stage to stage.
    if (period <= last_stage) {
      StageLinks last = out.of(last_stage);
      last.next = topology.stage_link(grid, last_stage);
      if (last != out.of(last_stage)) {
        out.of_stage.back() = static_cast<std::uint16_t>(out.stages.size());
        out.stages.push_back(last);
      }
    }
  }
  fold_equal(out);
  if (plan.world() > 1) out.world = topology.group(grid, {Axis::tp, Axis::cp, Axis::dp, Axis::pp});
  if (plan.pp > 1) {
    RankCoord last;
    last.pp = last_stage;
    const int ends[] = {grid.rank({}), grid.rank(last)};
    out.tied = topology.group_of(ends, 1);
  }
  return plan_links(topology, plan, std::move(out));
}

PlanLinks plan_links(const Topology& topology, const ParallelPlan& plan, PlanLinks unsharded) {
  if (plan.shards() == 1 || plan.shards() == plan.replicas()) return unsharded;
  const RankGrid grid(plan);
  const int period = topology.stage_period(grid);
  PlanLinks out;
  out.world = unsharded.world;
  out.tied = unsharded.tied;
  std::vector<Topology::ShardGroups> groups;
  groups.reserve(static_cast<std::size_t>(period));
  if (plan.pp > 1) out.of_stage.reserve(static_cast<std::size_t>(plan.pp));
  for (int stage = 0; stage < period; ++stage)
    groups.push_back(topology.shard_groups(grid, stage, plan.shards()));
  // A stage is as any before it whose links and groups were the same.
  std::vector<std::uint16_t> known(unsharded.stages.size() *
                                   groups.size());  // one more than its place; 0: none
  for (int stage = 0; stage < plan.pp; ++stage) {
    const std::size_t group = static_cast<std::size_t>(stage) % groups.size();
    std::uint16_t& place = known[unsharded.index(stage) * groups.size() + group];
    if (place == 0) {
      StageLinks links = unsharded.of(stage);
      links.shard = groups[group].shard;
      links.replica = groups[group].replica;
      const auto same = std::find(out.stages.begin(), out.stages.end(), links);
      place = static_cast<std::uint16_t>(same - out.stages.begin() + 1);
      if (same == out.stages.end()) out.stages.push_back(links);
    }
    if (plan.pp > 1) out.of_stage.push_back(place - 1);
  }
  fold_equal(out);
  return out;
}

}  // namespace sextant
