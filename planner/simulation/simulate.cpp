#include "planner/simulation/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sextant {
namespace {

// How a lane and its stage's compute lengthen each other. Stage-to-stage transfers use copy engines and disturb it little.
struct Slowing {
  double compute = 0, lane = 0;
  bool any() const { return compute > 0 || lane > 0; }
};
Slowing slowing_under_overlap(LaneId lane, const SimulateOptions& o) {
  switch (static_cast<LaneKind>(lane % kLaneKinds)) {
    case LaneKind::tp:
    case LaneKind::cp:
    case LaneKind::grad_reduce:
    case LaneKind::param_gather:
      return {o.comm_slows_compute, o.compute_slows_comm};
    case LaneKind::device_to_host:
    case LaneKind::host_to_device:
      return {o.copy_slows_compute, o.compute_slows_copy};
    default:
      return {};
  }
}

// What a stage's factors lengthen.
bool computes(const Work& work) { return std::holds_alternative<BlockWork>(work); }
bool updates(const Work& work) {
  const auto* state = std::get_if<StateWork>(&work);
  return state && state->kind == StateKind::update;
}

// What a pass reads of a graph.
struct Steps {
  std::span<const Work> works;
  std::span<const WorkRun> runs;
  std::size_t lanes = 0;
  std::span<const TimedOp> ops;
  const OpId* deps = nullptr;
};

// Of a work or a run in a list of works, then of runs.
std::size_t price_index(const Steps& g, WorkId id) {
  return id < kFirstRun ? id : g.works.size() + (id - kFirstRun);
}

// Prices of works, then of runs.
void price_runs(const Steps& g, std::span<const OpCost> by_work, double time_scale,
                SimulateScratch& scratch) {
  scratch.price.resize(g.works.size() + g.runs.size());
  scratch.computed.resize(scratch.price.size());
  scratch.updated.resize(scratch.price.size());
  for (std::size_t w = 0; w < g.works.size(); ++w) {
    scratch.price[w] = by_work[w].duration.v * time_scale;
    scratch.computed[w] = computes(g.works[w]) ? scratch.price[w] : 0.0;
    scratch.updated[w] = updates(g.works[w]) ? scratch.price[w] : 0.0;
  }
  for (std::size_t r = 0; r < g.runs.size(); ++r)
    for (auto* list : {&scratch.price, &scratch.computed, &scratch.updated})
      (*list)[g.works.size() + r] =
          (*list)[price_index(g, g.runs[r].before)] + (*list)[price_index(g, g.runs[r].last)];
}

bool is_alone(const OpCost& cost) { return !cost.overlapped; }

// By work, then by run: the share of its price that interference lengthens, which is not what was timed beside all that runs
// beside it. Empty where that is all of every price.
void share_alone(const Steps& g, std::span<const OpCost> by_work, SimulateScratch& scratch) {
  std::vector<double>& alone = scratch.alone;
  alone.clear();
  if (std::ranges::all_of(by_work, is_alone)) return;
  for (std::size_t w = 0; w < g.works.size(); ++w)
    alone.push_back(is_alone(by_work[w]) ? scratch.price[w] : 0.0);
  for (const WorkRun& run : g.runs)
    alone.push_back(alone[price_index(g, run.before)] + alone[price_index(g, run.last)]);
  for (std::size_t i = 0; i < alone.size(); ++i)
    if (scratch.price[i] > 0) alone[i] /= scratch.price[i];
}

// One forward pass. `duration_of(i, op)` is asked once per op, in order. A pass that notes keeps for `interfere` when each
// op began, and each lane's ops as a chain: `next` of an op, and of the lane in place ops + 1 + lane, where it begins; an op
// too many that never begins ends it.
template <bool kNotes, class DurationOf>
double sweep(const Steps& g, SimulateScratch& scratch, const DurationOf& duration_of) {
  const std::size_t n = g.ops.size();
  double *begin = scratch.begin.data(), *end = scratch.end.data(), *duration = scratch.duration.data(),
         *lane_free = scratch.lane_free.data();
  std::uint32_t *next = scratch.next.data(), *newest = scratch.newest.data();
  std::fill_n(lane_free, g.lanes, 0.0);
  if (kNotes) std::iota(newest, newest + g.lanes, static_cast<std::uint32_t>(n + 1));
  const TimedOp* op = g.ops.data();
  const OpId* dep = g.deps;
  for (std::size_t i = 0; i < n; ++i, ++op) {
    double start = lane_free[op->lanes[0]];
    for (const OpId* last = dep + op->dep_count; dep != last; ++dep) start = std::max(start, end[*dep]);
    const double took = duration_of(i, *op);
    if (op->lanes[1] != kNoLane) {
      start = std::max(start, lane_free[op->lanes[1]]);
      lane_free[op->lanes[1]] = start + took;
    }
    end[i] = lane_free[op->lanes[0]] = start + took;
    if (!kNotes) continue;
    begin[i] = start;
    duration[i] = took;
    std::uint32_t& before = newest[op->lanes[0]];
    next[before] = static_cast<std::uint32_t>(i);
    before = static_cast<std::uint32_t>(i);
  }
  if (kNotes) {
    begin[n] = end[n] = std::numeric_limits<double>::infinity();
    for (std::size_t lane = 0; lane < g.lanes; ++lane) next[newest[lane]] = static_cast<std::uint32_t>(n);
  }
  return *std::max_element(lane_free, lane_free + g.lanes);
}

// Lengthens compute, and collectives and copies, by the time they ran beside each other in the first pass. Each lane runs
// its operations one after the other, so that every other lane walks the stage's compute once. False when none did.
bool interfere(const Steps& g, const SimulateOptions& options, SimulateScratch& scratch) {
  const std::size_t n = g.ops.size();
  const double *begin = scratch.begin.data(), *end = scratch.end.data();
  const std::uint32_t* next = scratch.next.data();
  double* duration = scratch.duration.data();
  const std::vector<double>& alone = scratch.alone;
  const auto share = [&](std::uint32_t op) {
    return alone.empty() ? 1.0 : alone[price_index(g, g.ops[op].work)];
  };
  bool any = false;
  for (std::size_t lane = 0; lane < g.lanes; ++lane) {
    const Slowing slows = slowing_under_overlap(static_cast<LaneId>(lane), options);
    if (!slows.any()) continue;
    const std::size_t compute = lane - lane % kLaneKinds + static_cast<std::size_t>(LaneKind::compute);
    std::uint32_t overlapped = next[n + 1 + lane], first = next[n + 1 + compute];
    for (; overlapped != n; overlapped = next[overlapped]) {
      const double from = begin[overlapped], to = end[overlapped];
      while (end[first] <= from) first = next[first];
      double together = 0;
      for (std::uint32_t at = first; begin[at] < to; at = next[at]) {
        const double both = std::min(end[at], to) - std::max(begin[at], from);
        if (both <= 0) continue;
        duration[at] += slows.compute * both * share(at);
        together += both;
        any = true;
      }
      duration[overlapped] += slows.lane * together * share(overlapped);
    }
  }
  return any;
}

double makespan_of(const Steps& g, std::span<const OpCost> by_work, const SimulateOptions& options,
                   SimulateScratch& scratch) {
  const std::size_t n = g.ops.size();
  scratch.begin.resize(n + 1);
  scratch.end.resize(n + 1);
  scratch.duration.resize(n);
  scratch.next.resize(n + 1 + g.lanes);
  scratch.newest.resize(g.lanes);
  scratch.lane_free.resize(g.lanes);
  price_runs(g, by_work, options.time_scale, scratch);
  const std::vector<double>& factor = options.stage_compute_factor;
  const std::vector<double>& on_updates =
      options.stage_update_factor.empty() ? factor : options.stage_update_factor;
  const double* price = scratch.price.data();
  const auto cost_of = [&](std::size_t, const TimedOp& op) { return price[price_index(g, op.work)]; };
  const auto scaled_cost_of = [&](std::size_t, const TimedOp& op) {
    const std::size_t stage = op.lanes[0] / kLaneKinds, work = price_index(g, op.work);
    return price[work] + (factor[stage] - 1.0) * scratch.computed[work] +
           (on_updates[stage] - 1.0) * scratch.updated[work];
  };
  const double makespan =
      factor.empty() ? sweep<true>(g, scratch, cost_of) : sweep<true>(g, scratch, scaled_cost_of);
  if (std::max({options.comm_slows_compute, options.compute_slows_comm, options.copy_slows_compute,
                options.compute_slows_copy}) <= 0 ||
      !std::isfinite(makespan))
    return makespan;
  share_alone(g, by_work, scratch);
  if (!interfere(g, options, scratch)) return makespan;
  return sweep<false>(g, scratch, [&](std::size_t i, const TimedOp&) { return scratch.duration[i]; });
}

std::vector<OpCost> price_all(std::span<const Work> works, const CostModel& model) {
  std::vector<OpCost> costs;
  costs.reserve(works.size());
  for (const Work& work : works) costs.push_back(model.price(work));
  return costs;
}

}  // namespace

SimulateOptions with_interference(const StackKernels& k) {
  return {.comm_slows_compute = k.comm_slows_compute,
          .compute_slows_comm = k.compute_slows_comm,
          .copy_slows_compute = k.copy_slows_compute,
          .compute_slows_copy = k.compute_slows_copy};
}

std::vector<OpCost> price(const ExecutionGraph& graph, const CostModel& model) {
  return price_all(graph.works, model);
}
std::vector<OpCost> price(const FoldedGraph& graph, const CostModel& model) {
  return price_all(graph.works, model);
}

Seconds simulated_step(const ExecutionGraph& g, std::span<const OpCost> by_work,
                       const SimulateOptions& options, SimulateScratch& scratch) {
  scratch.ops.clear();
  scratch.deps.clear();
  for (const Op& op : g.ops) {
    scratch.ops.push_back({op.work, op.lanes, op.dep_count});
    scratch.deps.insert(scratch.deps.end(), g.deps_of(op).begin(), g.deps_of(op).end());
  }
  const Steps steps{g.works, {}, g.lanes.size(), scratch.ops, scratch.deps.data()};
  return Seconds(makespan_of(steps, by_work, options, scratch));
}

Seconds simulated_step(const FoldedGraph& g, std::span<const OpCost> by_work, const SimulateOptions& options,
                       SimulateScratch& scratch) {
  const Steps steps{g.works, g.runs, g.lanes, g.ops, g.deps.data()};
  return Seconds(makespan_of(steps, by_work, options, scratch));
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
