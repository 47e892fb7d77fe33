#include "planner/simulate.hpp"

#include <algorithm>
#include <limits>

namespace sextant {
namespace {

bool is_compute(LaneId lane) { return lane % kLaneKinds == static_cast<int>(LaneKind::compute); }

// Collectives beside compute; copies and stage-to-stage transfers use copy engines and disturb it little.
bool is_collective_lane(LaneId lane) {
  const auto kind = static_cast<LaneKind>(lane % kLaneKinds);
  return kind == LaneKind::tp || kind == LaneKind::cp || kind == LaneKind::grad_reduce ||
         kind == LaneKind::param_gather;
}

// One forward pass. `duration_of(i)` is asked once per op, in order.
template <class DurationOf>
double sweep(const ExecutionGraph& g, SimulateScratch& scratch, const DurationOf& duration_of) {
  const Op* ops = g.ops.data();
  const OpId* deps = g.deps.data();
  double *end = scratch.end.data(), *duration = scratch.duration.data(),
         *lane_free = scratch.lane_free.data();
  std::fill(scratch.lane_free.begin(), scratch.lane_free.end(), 0.0);
  const std::size_t n = g.ops.size();
  for (std::size_t i = 0; i < n; ++i) {
    const Op& op = ops[i];
    double start = lane_free[op.lanes[0]];
    for (std::uint32_t d = op.dep_begin, last = d + op.dep_count; d < last; ++d)
      start = std::max(start, end[deps[d]]);
    const double took = duration_of(i, op);
    duration[i] = took;
    if (op.lanes[1] != kNoLane) {
      start = std::max(start, lane_free[op.lanes[1]]);
      lane_free[op.lanes[1]] = start + took;
    }
    end[i] = lane_free[op.lanes[0]] = start + took;
  }
  double makespan = 0;
  for (const double free : scratch.lane_free) makespan = std::max(makespan, free);
  return makespan;
}

// Lengthens compute and collectives by the time they ran beside each other in the first pass.
bool interfere(const ExecutionGraph& g, const SimulateOptions& options, SimulateScratch& scratch) {
  if (options.comm_slows_compute <= 0 && options.compute_slows_comm <= 0) return false;
  const std::size_t n = g.ops.size(), stages = g.lanes.size() / kLaneKinds;
  const double *end = scratch.end.data(), *duration = scratch.duration.data();
  // Collectives beside compute, by stage and start.
  auto& beside = scratch.collectives;
  beside.resize(stages);
  for (auto& list : beside) list.clear();
  for (std::size_t i = 0; i < n; ++i)
    if (is_collective_lane(g.ops[i].lanes[0]) && duration[i] > 0)
      beside[g.ops[i].stage].push_back({end[i] - duration[i], end[i], static_cast<std::uint32_t>(i)});
  bool any = false;
  for (auto& list : beside) {
    any = any || !list.empty();
    std::sort(list.begin(), list.end(), [](const auto& x, const auto& y) { return x.start < y.start; });
    list.push_back({std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), 0});
  }
  if (!any) return false;
  scratch.longer.assign(n, 0.0);
  scratch.cursor.assign(stages, 0);
  double* longer = scratch.longer.data();
  for (std::size_t i = 0; i < n; ++i) {
    const Op& op = g.ops[i];
    if (!is_compute(op.lanes[0])) continue;
    const double stop = end[i], start = stop - duration[i];
    const auto* list = beside[op.stage].data();
    std::size_t& at = scratch.cursor[op.stage];
    while (list[at].end <= start) ++at;
    for (std::size_t k = at; list[k].start < stop; ++k) {
      const double both = std::min(list[k].end, stop) - std::max(list[k].start, start);
      if (both <= 0) continue;
      longer[i] += options.comm_slows_compute * both;
      longer[list[k].op] += options.compute_slows_comm * both;
    }
  }
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
  scratch.end.resize(g.ops.size());
  scratch.duration.resize(g.ops.size());
  scratch.lane_free.resize(g.lanes.size());
  scratch.price.clear();
  for (const OpCost& cost : by_work) scratch.price.push_back(cost.duration.v);
  const std::vector<double>& factor = options.stage_compute_factor;
  double makespan = sweep(g, scratch, [&](std::size_t, const Op& op) {
    const bool slowed = !factor.empty() && (op.role == OpRole::block || op.role == OpRole::update);
    return scratch.price[op.work] * (slowed ? factor[op.stage] : 1.0);
  });
  if (interfere(g, options, scratch))
    makespan =
        sweep(g, scratch, [&](std::size_t i, const Op&) { return scratch.duration[i] + scratch.longer[i]; });
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
