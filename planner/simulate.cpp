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

// What a stage's compute factor lengthens.
bool is_scaled(const Work& work) {
  const auto* state = std::get_if<StateWork>(&work);
  return std::holds_alternative<BlockWork>(work) || (state && state->kind == StateKind::update);
}

// Of a work or a run in a list of works, then of runs.
std::size_t place(const ExecutionGraph& g, WorkId id) {
  return id < kFirstRun ? id : g.works.size() + (id - kFirstRun);
}

// Prices of works, then of runs.
void price_runs(const ExecutionGraph& g, std::span<const WorkRun> runs, std::span<const OpCost> by_work,
                double time_scale, SimulateScratch& scratch) {
  scratch.price.resize(g.works.size() + runs.size()), scratch.scaled.resize(scratch.price.size());
  for (std::size_t w = 0; w < g.works.size(); ++w) {
    scratch.price[w] = by_work[w].duration.v * time_scale;
    scratch.scaled[w] = is_scaled(g.works[w]) ? scratch.price[w] : 0.0;
  }
  for (std::size_t r = 0; r < runs.size(); ++r)
    for (auto* list : {&scratch.price, &scratch.scaled})
      (*list)[g.works.size() + r] = (*list)[place(g, runs[r].before)] + (*list)[place(g, runs[r].last)];
}

bool is_analytic(const OpCost& cost) { return cost.source == CostSource::analytic; }

// By work, then by run: the share of its price that interference lengthens. What was measured, or told by what was, was
// timed beside all that runs beside it. Empty where that is all of every price.
void share_alone(const ExecutionGraph& g, std::span<const WorkRun> runs, std::span<const OpCost> by_work,
                 SimulateScratch& scratch) {
  std::vector<double>& alone = scratch.alone;
  alone.clear();
  if (std::ranges::all_of(by_work, is_analytic)) return;
  for (std::size_t w = 0; w < g.works.size(); ++w)
    alone.push_back(is_analytic(by_work[w]) ? scratch.price[w] : 0.0);
  for (const WorkRun& run : runs) alone.push_back(alone[place(g, run.before)] + alone[place(g, run.last)]);
  for (std::size_t i = 0; i < alone.size(); ++i)
    if (scratch.price[i] > 0) alone[i] /= scratch.price[i];
}

// One forward pass. `duration_of(i)` is asked once per op, in order; `ran` is told when each one ran.
template <class DurationOf, class Ran>
double sweep(const ExecutionGraph& g, SimulateScratch& scratch, const DurationOf& duration_of,
             const Ran& ran) {
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
    ran(i, op, start + took, took);
  }
  double makespan = 0;
  for (const double free : scratch.lane_free) makespan = std::max(makespan, free);
  return makespan;
}

// Where the first pass notes what ran on lanes of compute and collectives, in their order.
void watch(const ExecutionGraph& g, SimulateScratch& scratch) {
  const std::size_t lanes = g.lanes.size();
  scratch.by_lane.resize(std::max(scratch.by_lane.size(), lanes));
  for (auto& list : scratch.by_lane) list.clear();
  scratch.watched.resize(lanes);
  for (std::size_t lane = 0; lane < lanes; ++lane)
    scratch.watched[lane] =
        is_compute(static_cast<LaneId>(lane)) || is_collective_lane(static_cast<LaneId>(lane));
}

// Lengthens compute and collectives by the time they ran beside each other in the first pass. Each lane runs its
// operations one after the other, so that every lane of collectives walks the stage's compute once.
bool interfere(const ExecutionGraph& g, const SimulateOptions& options, SimulateScratch& scratch) {
  const std::size_t n = g.ops.size(), lanes = g.lanes.size();
  auto& by_lane = scratch.by_lane;
  scratch.longer.assign(n, 0.0);
  double* longer = scratch.longer.data();
  bool any = false;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    if (!is_collective_lane(static_cast<LaneId>(lane)) || by_lane[lane].empty()) continue;
    any = true;
    const auto& compute = by_lane[lane - lane % kLaneKinds + static_cast<std::size_t>(LaneKind::compute)];
    auto first = compute.begin();
    for (const SimulateScratch::Ran& beside : by_lane[lane]) {
      while (first != compute.end() && first->end <= beside.start) ++first;
      for (auto at = first; at != compute.end() && at->start < beside.end; ++at) {
        const double both = std::min(at->end, beside.end) - std::max(at->start, beside.start);
        if (both <= 0) continue;
        longer[at->op] += options.comm_slows_compute * both;
        longer[beside.op] += options.compute_slows_comm * both;
      }
    }
  }
  if (const std::vector<double>& alone = scratch.alone; !alone.empty())
    for (std::size_t i = 0; i < n; ++i) longer[i] *= alone[place(g, g.ops[i].work)];
  return any;
}

}  // namespace

std::vector<OpCost> price(const ExecutionGraph& graph, const CostModel& model) {
  std::vector<OpCost> costs;
  costs.reserve(graph.works.size());
  for (const Work& work : graph.works) costs.push_back(model.price(work));
  return costs;
}

namespace {

double makespan_of(const ExecutionGraph& g, std::span<const WorkRun> runs_of, std::span<const OpCost> by_work,
                   const SimulateOptions& options, SimulateScratch& scratch) {
  scratch.end.resize(g.ops.size());
  scratch.duration.resize(g.ops.size());
  scratch.lane_free.resize(g.lanes.size());
  price_runs(g, runs_of, by_work, options.time_scale, scratch);
  const std::vector<double>& factor = options.stage_compute_factor;
  const double *price = scratch.price.data(), *runs = price + g.works.size();
  const auto cost_of = [&](const Op& op) {
    return op.work < kFirstRun ? price[op.work] : runs[op.work - kFirstRun];
  };
  const auto scaled_cost_of = [&](const Op& op) {
    return cost_of(op) + (factor[op.stage] - 1.0) * scratch.scaled[place(g, op.work)];
  };
  const auto first_pass = [&](const auto& ran) {
    return factor.empty()
               ? sweep(
                     g, scratch, [&](std::size_t, const Op& op) { return cost_of(op); }, ran)
               : sweep(
                     g, scratch, [&](std::size_t, const Op& op) { return scaled_cost_of(op); }, ran);
  };
  const auto unwatched = [](std::size_t, const Op&, double, double) {};
  if (options.comm_slows_compute <= 0 && options.compute_slows_comm <= 0) return first_pass(unwatched);
  share_alone(g, runs_of, by_work, scratch);
  watch(g, scratch);
  const char* watched = scratch.watched.data();
  auto* by_lane = scratch.by_lane.data();
  const double makespan = first_pass([&](std::size_t i, const Op& op, double end, double took) {
    if (const LaneId lane = op.lanes[0]; watched[lane] && took > 0)
      by_lane[lane].push_back({end - took, end, static_cast<std::uint32_t>(i)});
  });
  if (interfere(g, options, scratch))
    return sweep(
        g, scratch, [&](std::size_t i, const Op&) { return scratch.duration[i] + scratch.longer[i]; },
        unwatched);
  return makespan;
}

}  // namespace

Seconds simulated_step(const ExecutionGraph& g, std::span<const OpCost> by_work,
                       const SimulateOptions& options, SimulateScratch& scratch) {
  return Seconds(makespan_of(g, {}, by_work, options, scratch));
}

Seconds simulated_step(const FoldedGraph& g, std::span<const OpCost> by_work, const SimulateOptions& options,
                       SimulateScratch& scratch) {
  return Seconds(makespan_of(g, g.runs, by_work, options, scratch));
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
