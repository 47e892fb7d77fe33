#include "planner/simulate.hpp"

#include <algorithm>

namespace sextant {
namespace {

bool is_compute(LaneId lane) { return lane % kLaneKinds == static_cast<int>(LaneKind::compute); }

// Collectives beside compute; copies and stage-to-stage transfers use copy engines and disturb it little.
bool is_collective_lane(LaneId lane) {
  const auto kind = static_cast<LaneKind>(lane % kLaneKinds);
  return kind == LaneKind::tp || kind == LaneKind::cp || kind == LaneKind::grad_reduce ||
         kind == LaneKind::param_gather;
}

void base_durations(const ExecutionGraph& g, std::span<const OpCost> by_work, const SimulateOptions& options,
                    std::vector<double>& duration) {
  duration.resize(g.ops.size());
  for (std::size_t i = 0; i < g.ops.size(); ++i) duration[i] = by_work[g.ops[i].work].duration.v;
  if (options.stage_compute_factor.empty()) return;
  for (std::size_t i = 0; i < g.ops.size(); ++i)
    if (g.ops[i].role == OpRole::block || g.ops[i].role == OpRole::update)
      duration[i] *= options.stage_compute_factor[g.ops[i].stage];
}

double sweep(const ExecutionGraph& g, const std::vector<double>& duration, std::vector<double>& end,
             std::vector<double>& lane_free) {
  end.resize(g.ops.size());
  lane_free.assign(g.lanes.size(), 0.0);
  double makespan = 0;
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    double start = lane_free[op.lanes[0]];
    if (op.lanes[1] != kNoLane) start = std::max(start, lane_free[op.lanes[1]]);
    for (std::uint32_t d = op.dep_begin; d < op.dep_begin + op.dep_count; ++d)
      start = std::max(start, end[g.deps[d]]);
    const double finish = start + duration[i];
    end[i] = finish;
    lane_free[op.lanes[0]] = finish;
    if (op.lanes[1] != kNoLane) lane_free[op.lanes[1]] = finish;
    makespan = std::max(makespan, finish);
  }
  return makespan;
}

// Lengthens compute and collectives by the time they ran beside each other in the first pass.
bool interfere(const ExecutionGraph& g, const SimulateOptions& options, const std::vector<double>& end,
               std::vector<double>& duration) {
  if (options.comm_slows_compute <= 0 && options.compute_slows_comm <= 0) return false;
  const std::size_t stages = g.lanes.size() / kLaneKinds;
  std::vector<std::vector<std::uint32_t>> compute(stages), collectives(stages);
  bool any = false;
  for (std::uint32_t i = 0; i < g.ops.size(); ++i) {
    const Op& op = g.ops[i];
    if (duration[i] <= 0) continue;
    if (is_collective_lane(op.lanes[0])) collectives[op.stage].push_back(i), any = true;
  }
  if (!any) return false;
  for (std::uint32_t i = 0; i < g.ops.size(); ++i)
    if (duration[i] > 0 && is_compute(g.ops[i].lanes[0])) compute[g.ops[i].stage].push_back(i);
  std::vector<double> longer(g.ops.size(), 0.0);
  for (std::size_t s = 0; s < stages; ++s) {
    for (const std::uint32_t c : collectives[s]) {
      const double c_end = end[c], c_start = c_end - duration[c];
      // Compute ops of a stage are in time order: find the first that ends after the collective starts.
      auto it = std::partition_point(compute[s].begin(), compute[s].end(),
                                     [&](std::uint32_t i) { return end[i] <= c_start; });
      for (; it != compute[s].end() && end[*it] - duration[*it] < c_end; ++it) {
        const double beside = std::min(c_end, end[*it]) - std::max(c_start, end[*it] - duration[*it]);
        longer[*it] += options.comm_slows_compute * beside;
        longer[c] += options.compute_slows_comm * beside;
      }
    }
  }
  for (std::size_t i = 0; i < duration.size(); ++i) duration[i] += longer[i];
  return true;
}

}  // namespace

std::vector<OpCost> price(const ExecutionGraph& graph, const CostModel& model) {
  std::vector<OpCost> costs;
  costs.reserve(graph.works.size());
  for (const Work& work : graph.works) costs.push_back(model.price(work));
  return costs;
}

Seconds simulated_step(const ExecutionGraph& g, std::span<const OpCost> by_work,
                       const SimulateOptions& options, SimulateScratch& scratch) {
  base_durations(g, by_work, options, scratch.duration);
  double makespan = sweep(g, scratch.duration, scratch.end, scratch.lane_free);
  if (interfere(g, options, scratch.end, scratch.duration))
    makespan = sweep(g, scratch.duration, scratch.end, scratch.lane_free);
  return Seconds(makespan);
}

Timeline simulate(const ExecutionGraph& g, std::span<const OpCost> by_work, const SimulateOptions& options) {
  SimulateScratch scratch;
  simulated_step(g, by_work, options, scratch);
  Timeline timeline;
  timeline.kind = TimelineKind::predicted;
  timeline.graph_hash = graph_hash(g);
  timeline.spans.reserve(g.ops.size());
  for (std::size_t i = 0; i < g.ops.size(); ++i)
    timeline.spans.push_back({scratch.end[i] - scratch.duration[i], scratch.end[i]});
  return timeline;
}

}  // namespace sextant
