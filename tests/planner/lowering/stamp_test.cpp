// Slots that are copied while lowering for timing alone are those that would have been emitted: over random models,
// stacks and plans with many micro-batches the graph is the same as the one with operands, which copies nothing. And a
// graph folded for its makespan takes as long as the whole one, interference and slower stages included.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "planner/lowering/lower.hpp"
#include "planner/simulation/predict.hpp"
#include "tests/planner/search/search_support.hpp"

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

RC_GTEST_PROP(Fold, KeepsTheMakespan, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const PlanLinks links = plan_links(job.topology, plan);
  const auto whole = lower(job.model, job.training, links, plan, job.stack);
  const auto folded = lower_folded(job.model, job.training, links, plan, job.stack);
  RC_ASSERT(folded.ops.size() < whole.ops.size());
  SimulateOptions how = simulate_options(job, plan);
  if (*rc::gen::arbitrary<bool>())
    for (int s = 0; s < plan.pp; ++s) how.stage_compute_factor.push_back(1.0 + 0.1 * arbitrary::upto(0, 5));
  SimulateScratch scratch;
  const double expected = simulated_step(whole, price(whole, job.cost), how, scratch).v;
  const double step = simulated_step(folded, price(folded, job.cost), how, scratch).v;
  if (std::abs(step - expected) > 1e-12 * expected)
    RC_FAIL(fmt::format("{} takes {:.17g} s, folded {:.17g} s", plan_key(plan), expected, step));
}

// What the room held before does not show.
RC_GTEST_PROP(Fold, UsedRoomIsAsGoodAsNew, ()) {
  const testing::RandomJob random;
  const Job job = random.job();
  FoldedGraph used;
  for (int i = 0; i < 2; ++i) {
    const ParallelPlan plan = random.plan();
    if (unlawful(job, plan)) continue;
    const PlanLinks links = plan_links(job.topology, plan);
    lower_folded(job.model, job.training, links, plan, job.stack, used);
    const auto fresh = lower_folded(job.model, job.training, links, plan, job.stack);
    RC_ASSERT(used.works == fresh.works);
    RC_ASSERT(used.deps == fresh.deps);
    RC_ASSERT(used.lanes == fresh.lanes);
    RC_ASSERT(used.runs.size() == fresh.runs.size());
    RC_ASSERT(used.ops == fresh.ops);
    SimulateScratch scratch;
    const SimulateOptions how = simulate_options(job, plan);
    RC_ASSERT(simulated_step(used, price(used, job.cost), how, scratch) ==
              simulated_step(fresh, price(fresh, job.cost), how, scratch));
  }
}

// Negative control: a run that holds another work takes another time.
TEST(Fold, ALostWorkIsSeen) {
  const testing::OwnedJob owned = testing::small_job();
  const Job job = owned.job();
  const ParallelPlan plan = parse_plan_key("tp2.pp2.vp2.cp1.dp2.z1.mbs1");
  const PlanLinks links = plan_links(job.topology, plan);
  auto folded = lower_folded(job.model, job.training, links, plan, job.stack);
  SimulateScratch scratch;
  const auto step = [&] {
    return simulated_step(folded, price(folded, job.cost), simulate_options(job, plan), scratch).v;
  };
  const double before = step();
  ASSERT_FALSE(folded.runs.empty());
  folded.runs.front().last = folded.runs.front().before;
  EXPECT_GT(std::abs(step() - before), 1e-9 * before);
}

}  // namespace
}  // namespace sextant
