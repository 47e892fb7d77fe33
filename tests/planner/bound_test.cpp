// The bounds never exceed the simulator, over random models, clusters and plans; and they are tight where they should be.
#include "planner/bound.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "planner/lower.hpp"
#include "planner/predict.hpp"
#include "tests/planner/search_support.hpp"

namespace sextant {
namespace {

double simulated(const Job& job, const ParallelPlan& plan, const PlanLinks& links) {
  const auto graph = lower(job.model, job.training, links, plan, job.stack, {.operands = false});
  SimulateScratch scratch;
  return simulated_step(graph, price(graph, job.cost), simulate_options(job, plan), scratch).v;
}

RC_GTEST_PROP(Bound, NeverExceedsTheSimulator, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const PlanLinks links = plan_links(job.topology, plan);
  const double bound = step_lower_bound(job, plan, links).v, step = simulated(job, plan, links);
  RC_TAG(step > 1.05 * bound ? "loose" : "tight");
  if (bound > step * (1 + 1e-9))
    RC_FAIL(plan_key(plan) + ": bound " + std::to_string(bound) + ", step " + std::to_string(step));
}

}  // namespace
}  // namespace sextant
