// (model, training, cluster, plan, stack) -> the execution graph of one training step. The only place that turns a
// layout into operations; what runs, what is priced and what is checked is this value.
#pragma once

#include "core/graph/execution_graph.hpp"
#include "core/plan/plan_links.hpp"
#include "core/plan/stack_spec.hpp"
#include "planner/lowering/folded_graph.hpp"

namespace sextant {

struct LowerOptions {
  // Buffers and byte ranges cost about half of the time of lowering and do not change the operations; the search
  // leaves them out.
  bool operands = true;
};

// The plan must be valid for model, batch and stack (validate, refuses).
ExecutionGraph lower(const ModelSpec&, const TrainingSpec&, const PlanLinks&, const ParallelPlan&,
                     const StackSpec&, const LowerOptions& = {});

// The same for its makespan alone: what the search simulates.
FoldedGraph lower_folded(const ModelSpec&, const TrainingSpec&, const PlanLinks&, const ParallelPlan&,
                         const StackSpec&);
// Into a graph whose room is used again: large ones cost more to allocate than to fill.
void lower_folded(const ModelSpec&, const TrainingSpec&, const PlanLinks&, const ParallelPlan&,
                  const StackSpec&, FoldedGraph&);

}  // namespace sextant
