// The lowest-memory layout against brute force over small spaces.
#include "planner/answers/lowest_memory.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "planner/answers/scale.hpp"
#include "planner/search/search_tree.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using arbitrary::upto;

// One value of each list, or two: often with the first, with which most combinations are lawful.
SearchSpace narrow(SearchSpace s) {
  const auto some = [](auto& list, int most = 2) {
    const int first = upto(0, 3) > 0 ? 1 : 0;
    while (static_cast<int>(list.size()) > most || (list.size() > 1 && upto(0, 1) == 0))
      list.erase(list.begin() +
                 upto(std::min(first, static_cast<int>(list.size()) - 1), static_cast<int>(list.size()) - 1));
  };
  some(s.tp);
  some(s.cp);
  some(s.pp);
  some(s.axis_order);
  some(s.micro_batch);
  some(s.sequence_parallel);
  some(s.overlap_tp);
  some(s.recompute, 3);
  some(s.form, 3);
  some(s.split);
  some(s.zero_stage);
  some(s.shard_degree);
  some(s.optimizer_offload);
  some(s.parameter_offload);
  some(s.activation_offload, 3);
  some(s.bucket_elements);
  some(s.last_bucket_split);
  some(s.overlap_grad_reduce);
  some(s.overlap_param_gather);
  return s;
}

struct LowestMemory {
  std::int64_t peak = 0;  // of what fits; 0: nothing does
  double step = 0;        // of the fastest that need it
};

LowestMemory lowest_memory_of_all(const Job& job, const SearchSpace& space) {
  const SearchTree tree(job, space, job.cluster.device.memory);
  SearchCache cache(job, space);
  std::vector<ParallelPlan> least;
  LowestMemory out;
  testing::each_member(space, [&](const Choice& choice) {
    if (space.world % (space.tp[choice.tp] * space.cp[choice.cp] * space.pp[choice.pp]) != 0) return;
    const ParallelPlan plan = tree.plan(choice, cache);
    if (unlawful_reason(job, plan) || space.idle_horizon(plan)) return;
    const PlanMemory memory = plan_memory(job, plan);
    if (too_large(job, memory) || (out.peak > 0 && memory.peak.v > out.peak)) return;
    if (memory.peak.v != out.peak) least.clear();
    out.peak = memory.peak.v;
    least.push_back(plan);
  });
  for (const ParallelPlan& plan : least) {
    const double step = predict(job, plan).step.v;
    if (out.step == 0 || step < out.step) out.step = step;
  }
  return out;
}

RC_GTEST_PROP(LowestMemory, EqualsBruteForce, ()) {
  testing::OwnedJob owned = testing::RandomJob().take();
  owned.stack.memory.exact_tensors = upto(0, 2) == 0;
  if (upto(0, 1) == 0) testing::some_rules(owned.stack.can);
  if (upto(0, 2) == 0) owned.cluster.node.host_memory = from_gib(*rc::gen::element(0.05, 0.5, 4.0));
  owned.cluster.device.memory = from_gib(*rc::gen::element(1.0, 4.0, 16.0, 79.0));
  owned.finish();
  const Job job = owned.job();
  const SearchSpace space =
      narrow(default_space(job.model, job.training, job.cluster.device, job.cluster.gpus()));
  const LowestMemory expected = lowest_memory_of_all(job, space);
  RC_CLASSIFY(expected.peak > 0);
  RC_ASSERT(any_layout(job, space).plan.has_value() == (expected.peak > 0));
  const LowestMemoryLayout lean = lowest_memory_layout(job, space);
  RC_ASSERT(lean.exact);
  RC_ASSERT(lean.peak.v == expected.peak);
  if (!lean.plan) return;
  RC_ASSERT(plan_memory(job, *lean.plan).peak == lean.peak);
  const LowestMemoryPlans plans = lowest_memory_plans(job, space);
  RC_ASSERT(plans.report.exact);
  RC_ASSERT(plans.report.outcomes.total() == space.size());
  const Prediction& first = plans.report.ranked.front().prediction;
  RC_ASSERT(first.memory.peak.v == expected.peak);
  // Equal steps are those within two millionths.
  RC_ASSERT(first.step.v <= expected.step * (1 + 2e-6));
}

}  // namespace
}  // namespace sextant
