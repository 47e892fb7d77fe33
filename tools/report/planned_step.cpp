#include "tools/report/planned_step.hpp"

#include <utility>

#include "core/plan/plan_links.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/simulate.hpp"

namespace sextant {

PlannedStep planned_step(const Job& job, const ParallelPlan& plan) {
  PlannedStep step;
  step.graph = lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {});
  step.timeline = simulate(step.graph, price(step.graph, job.cost), simulate_options(job, plan));
  step.split = breakdown(step.graph, step.timeline);
  step.memory = estimate_memory(job.model, job.training, plan, job.stack);
  step.prediction = predict_under(job, plan, RankBy::expected);
  return step;
}

}  // namespace sextant
