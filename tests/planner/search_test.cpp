// The search against brute force over whole small spaces: the same best plan, every member counted once.
#include "planner/search.hpp"

#include <gtest/gtest.h>

#include "planner/lower.hpp"
#include "planner/search_tree.hpp"
#include "planner/stage_split.hpp"
#include "tests/planner/search_support.hpp"

namespace sextant {
namespace {

using testing::OwnedJob;

// A space that touches every list, yet can be simulated whole.
SearchSpace small_space(const OwnedJob& owned) {
  SearchSpace s = default_space(owned.model, owned.training, owned.cluster.gpus());
  s.tp = {1, 2, 3}, s.cp = {1, 2}, s.pp = {1, 2};
  s.axis_order.resize(2);
  s.micro_batch = {1, 2};
  s.recompute = {{RecomputeKind::none, -1}, {RecomputeKind::full, 1}};
  s.form = {{PipelineSchedule::one_f_one_b, 1},
            {PipelineSchedule::interleaved, 2},
            {PipelineSchedule::zero_bubble, 1}};
  s.overlap_tp = {0};
  s.zero_stage = {0, 1, 3};
  s.overlap_param_gather = {1};
  s.shard_degree = {0, 2};
  s.optimizer_offload = {0};
  s.parameter_offload = {0};
  s.activation_offload = {{0, 1}, {1, 1}};
  s.bucket_elements = {0, 1'000'000};
  s.last_bucket_split = {1};
  return s;
}

template <class F>
void each_member(const SearchSpace& s, F visit) {
  const std::array<std::pair<std::uint8_t Choice::*, std::size_t>, 19> fields = {{
      {&Choice::tp, s.tp.size()},
      {&Choice::cp, s.cp.size()},
      {&Choice::pp, s.pp.size()},
      {&Choice::axis_order, s.axis_order.size()},
      {&Choice::micro_batch, s.micro_batch.size()},
      {&Choice::sequence_parallel, s.sequence_parallel.size()},
      {&Choice::overlap_tp, s.overlap_tp.size()},
      {&Choice::recompute, s.recompute.size()},
      {&Choice::form, s.form.size()},
      {&Choice::split, s.split.size()},
      {&Choice::zero_stage, s.zero_stage.size()},
      {&Choice::shard_degree, s.shard_degree.size()},
      {&Choice::optimizer_offload, s.optimizer_offload.size()},
      {&Choice::parameter_offload, s.parameter_offload.size()},
      {&Choice::activation_offload, s.activation_offload.size()},
      {&Choice::bucket_elements, s.bucket_elements.size()},
      {&Choice::last_bucket_split, s.last_bucket_split.size()},
      {&Choice::overlap_grad_reduce, s.overlap_grad_reduce.size()},
      {&Choice::overlap_param_gather, s.overlap_param_gather.size()},
  }};
  Choice c;
  for (std::uint64_t i = 0; i < s.size(); ++i) {
    std::uint64_t rest = i;
    for (const auto& [field, n] : fields) c.*field = static_cast<std::uint8_t>(rest % n), rest /= n;
    visit(c);
  }
}

struct BruteForce {
  double step = INFINITY;
  std::string key;
  std::uint64_t lawful = 0, fitting = 0;
};

BruteForce brute_force(const Job& job, const SearchSpace& space) {
  BruteForce best;
  const SearchTree tree(job, space, job.cluster.device.memory);
  SearchCache cache(job, space);
  SimulateScratch scratch;
  each_member(space, [&](const Choice& choice) {
    if (space.world % (space.tp[choice.tp] * space.cp[choice.cp] * space.pp[choice.pp]) != 0) return;
    if (unlawful(job, plan_of(space, choice))) return;
    const ParallelPlan plan = tree.plan(choice, cache);
    if (unlawful(job, plan)) return;
    ++best.lawful;
    if (plan_memory(job, plan).peak > job.cluster.device.memory) return;
    ++best.fitting;
    const auto graph =
        lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {.operands = false});
    const double step = simulated_step(graph, price(graph, job.cost), simulate_options(job, plan), scratch).v;
    if (step < best.step) best.step = step, best.key = plan_key(plan);
  });
  return best;
}

TEST(Search, EqualsBruteForce) {
  for (const double memory_GiB : {79.0, 0.75}) {
    OwnedJob owned = testing::small_job(1, 4, 4);
    owned.training.global_batch = 4;
    owned.cluster.device.memory = from_gib(memory_GiB);
    owned.stack.rules.bucket_elements = 10'000'000, owned.stack.rules.bucket_elements_per_replica = 0;
    owned.finish();
    const Job job = owned.job();
    const SearchSpace space = small_space(owned);
    const BruteForce expected = brute_force(job, space);
    const SearchReport report = search(job, space);
    if (memory_GiB < 79) {
      EXPECT_LT(expected.fitting, expected.lawful);
    }
    ASSERT_FALSE(report.ranked.empty());
    EXPECT_DOUBLE_EQ(report.ranked.front().simulated.v, expected.step)
        << plan_key(report.ranked.front().plan) << " against " << expected.key;
    EXPECT_EQ(report.fates.total(), space.size());
    EXPECT_EQ(report.space, space.size());
    EXPECT_TRUE(report.exact);
    EXPECT_EQ(report.fates[Fate::unvisited], 0u);
    EXPECT_GT(expected.lawful, 500u);
    EXPECT_LT(report.fates[Fate::simulated], expected.fitting / 10)
        << "the bounds must spare most of the work";
  }
}

}  // namespace
}  // namespace sextant
