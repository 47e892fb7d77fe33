// When does each operation of a graph run? One pass: an op starts when its dependencies have ended and its lanes are
// free. No event queue and no policy: nothing here is decided that the runtime would decide differently.
//
// Interference: communication beside compute takes multiprocessors and memory bandwidth. After a first pass every
// compute op is lengthened by `comm_slows_compute` times the time that collectives of its stage ran beside it, every
// such collective by `compute_slows_comm` times the compute beside it, both by copies over the host link likewise, and the
// pass is repeated once. So time never falls below the first pass, which keeps bounds on it admissible. Costs that were timed
// beside what runs beside them (OpCost::beside) hold it already and are not lengthened.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/plan/stack_spec.hpp"
#include "core/timeline/timeline.hpp"
#include "cost_models/cost_model.hpp"
#include "planner/lowering/folded_graph.hpp"

namespace sextant {

struct SimulateOptions {
  double comm_slows_compute = 0.0;
  double compute_slows_comm = 0.0;
  double copy_slows_compute = 0.0;
  double compute_slows_copy = 0.0;
  // Factors on compute per stage (stragglers, slower devices); empty = 1.
  std::vector<double> stage_compute_factor = {};
  // The same on updates, where theirs is another one; empty = as on compute.
  std::vector<double> stage_update_factor = {};
  double time_scale = 1.0;  // factor on every duration (what a calibration learned of the layout)
};

SimulateOptions with_interference(const StackKernels&);

// Prices every distinct work of the graph once: costs[WorkId].
std::vector<OpCost> price(const ExecutionGraph&, const CostModel&);
std::vector<OpCost> price(const FoldedGraph&, const CostModel&);

Timeline simulate(const ExecutionGraph&, std::span<const OpCost> by_work, const SimulateOptions& = {});

// The makespan alone, with `scratch` reused between calls: what the search calls.
struct SimulateScratch {
  std::vector<double> begin, end, duration;  // by op
  std::vector<std::uint32_t> next, newest;   // the order of each lane's ops; the newest of each lane
  std::vector<double> lane_free;
  // By work, then by run; the parts of it that a stage's factors on compute and on updates lengthen.
  std::vector<double> price, computed, updated;
  std::vector<double> alone;  // the share of it that interference does
  std::vector<TimedOp> ops;   // of a graph that is not folded
  std::vector<OpId> deps;
};
Seconds simulated_step(const ExecutionGraph&, std::span<const OpCost> by_work, const SimulateOptions&,
                       SimulateScratch&);
Seconds simulated_step(const FoldedGraph&, std::span<const OpCost> by_work, const SimulateOptions&,
                       SimulateScratch&);

}  // namespace sextant
