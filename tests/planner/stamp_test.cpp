// Slots that are copied while lowering for timing alone are those that would have been emitted: over random models,
// stacks and plans with many micro-batches the graph is the same as the one with operands, which copies nothing.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "planner/lower.hpp"
#include "planner/predict.hpp"
#include "tests/planner/search_support.hpp"

namespace sextant {
namespace {

RC_GTEST_PROP(Stamp, CopiesWhatWouldHaveBeenEmitted, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const PlanLinks links = plan_links(job.topology, plan);
  const auto whole = lower(job.model, job.training, links, plan, job.stack);
  const auto timing = lower(job.model, job.training, links, plan, job.stack, {.operands = false});
  RC_TAG(microbatches(plan, job.training) > 3 ? "copies" : "too few micro-batches");
  if (whole.ops.size() != timing.ops.size() || whole.deps != timing.deps ||
      graph_hash(whole) != graph_hash(timing))
    RC_FAIL(plan_key(plan) + " with " + std::to_string(microbatches(plan, job.training)) +
            " micro-batches of " + std::to_string(job.model.n_layers) + " layers");
}

}  // namespace
}  // namespace sextant
