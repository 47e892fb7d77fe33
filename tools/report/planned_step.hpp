// A plan simulated anew, for what a report shows and plan files do not hold: memory by stage, time by stage, the timeline.
#pragma once

#include "core/graph/execution_graph.hpp"
#include "core/timeline/breakdown.hpp"
#include "core/timeline/timeline.hpp"
#include "planner/lowering/job.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {

struct PlannedStep {
  ExecutionGraph graph;
  Timeline timeline;
  Breakdown split;
  MemoryEstimate memory;
  Prediction prediction;
};
PlannedStep planned_step(const Job&, const ParallelPlan&);

}  // namespace sextant
