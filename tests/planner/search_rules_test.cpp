// The search under rules of what goes together, against brute force: what the stack refuses is never returned, and nothing
// that it allows is lost.
#include <gtest/gtest.h>

#include "planner/lower.hpp"
#include "planner/search.hpp"
#include "planner/search_tree.hpp"
#include "tests/planner/search_support.hpp"

namespace sextant {
namespace {

// Every choice of what the rules are about.
SearchSpace space_of_rules(const Job& job) {
  SearchSpace s = default_space(job.model, job.training, job.cluster.gpus());
  s.tp = {1, 2}, s.cp = {1}, s.pp = {1, 2};
  s.axis_order.resize(1), s.micro_batch = {1};
  s.zero_stage = {0, 1, 2, 3}, s.shard_degree = {0, 2};
  s.sequence_parallel = {0, 1}, s.overlap_tp = {0, 1};
  s.recompute = {{RecomputeKind::none, -1}};
  s.form = {{PipelineSchedule::one_f_one_b, 1}, {PipelineSchedule::gpipe, 1}};
  s.optimizer_offload = {0, 0.5, 1}, s.parameter_offload = {0, 1}, s.activation_offload = {{0, 1}, {1, 1}};
  s.bucket_elements = {0}, s.last_bucket_split = {1};
  s.overlap_grad_reduce = s.overlap_param_gather = {1};
  return s;
}

struct BruteForce {
  double step = INFINITY;
  std::int64_t peak = std::numeric_limits<std::int64_t>::max();
  int refused = 0;  // by the stack alone
};

BruteForce brute_force(const Job& job, const SearchSpace& space) {
  BruteForce best;
  const SearchTree tree(job, space, job.cluster.device.memory);
  SearchCache cache(job, space);
  SimulateScratch scratch;
  testing::each_member(space, [&](const Choice& choice) {
    const ParallelPlan plan = tree.plan(choice, cache);
    if (plan.world() != job.cluster.gpus()) return;
    if (const auto reason = unlawful_reason(job, plan)) {
      best.refused += *reason == RejectReason::stack_cannot;
      return;
    }
    if (idle_horizon(plan)) return;
    const PlanMemory memory = plan_memory(job, plan);
    if (too_large(job, memory)) return;
    best.peak = std::min(best.peak, memory.peak.v);
    const auto graph =
        lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {.operands = false});
    best.step = std::min(
        best.step, simulated_step(graph, price(graph, job.cost), simulate_options(job, plan), scratch).v);
  });
  return best;
}

struct Stack {
  const char* name;
  void (*rules)(StackCapabilities&);
};

class SearchRules : public ::testing::TestWithParam<Stack> {};

TEST_P(SearchRules, EqualsBruteForce) {
  int refused = 0;
  for (const double memory_GiB : {79.0, 1.5, 0.6}) {
    testing::OwnedJob owned = testing::small_job(1, 4, 4);
    owned.training.global_batch = 8;
    owned.cluster.device.memory = from_gib(memory_GiB);
    owned.stack.rules.bucket_elements = 10'000'000, owned.stack.rules.bucket_elements_per_replica = 0;
    owned.stack.rules.reduce_every_microbatch = true;
    GetParam().rules(owned.stack.can);
    owned.finish();
    const Job job = owned.job();
    const SearchSpace space = space_of_rules(job);
    const BruteForce expected = brute_force(job, space);
    refused += expected.refused;
    SearchOptions options;
    options.move_layers = false;
    const SearchReport report = search(job, space, options);
    EXPECT_TRUE(report.exact);
    EXPECT_EQ(report.fates.total(), space.size());
    ASSERT_EQ(report.ranked.empty(), std::isinf(expected.step)) << memory_GiB;
    if (report.ranked.empty()) continue;
    EXPECT_NEAR(report.ranked.front().simulated.v / expected.step, 1, 1e-6)
        << memory_GiB << " GiB: " << plan_key(report.ranked.front().plan);
    for (const RankedPlan& r : report.ranked) EXPECT_FALSE(unlawful(job, r.plan)) << plan_key(r.plan);
  }
  EXPECT_EQ(refused > 0, std::string(GetParam().name) != "able");
}

INSTANTIATE_TEST_SUITE_P(
    Of, SearchRules,
    ::testing::Values(Stack{"able", [](StackCapabilities&) {}},  // the negative control: nothing is refused
                      Stack{"deepspeed",
                            [](StackCapabilities& can) {
                              can.shard_degree_from_zero = can.parameter_offload_from_zero =
                                  can.partial_offload_from_zero = 3;
                              can.optimizer_offload_from_zero = 1;
                            }},
                      Stack{"fsdp2",
                            [](StackCapabilities& can) {
                              can.zero_stages = {0, 2, 3};
                              can.parameter_offload_needs_optimizer = can.optimizer_offload_needs_parameters =
                                  true;
                              can.tp_needs_sequence_parallel = can.overlap_tp_needs_sequence_parallel = true;
                            }},
                      Stack{"gemini",
                            [](StackCapabilities& can) {
                              can.zero_stages = {3};
                              can.parameter_offload_needs_optimizer = true;
                            }},
                      Stack{"megatron",
                            [](StackCapabilities& can) {
                              can.overlap_tp_needs_sequence_parallel = true, can.parameter_offload = false;
                              can.optimizer_offload_from_zero = 1;
                            }}),
    [](const auto& stack) { return stack.param.name; });

}  // namespace
}  // namespace sextant
