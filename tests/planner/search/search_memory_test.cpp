// The search and the memory limit: what does not fit is told, and what fits by a byte is not lost.
#include <algorithm>

#include <gtest/gtest.h>

#include "planner/search/search.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using testing::OwnedJob;

TEST(Search, SaysThatNothingFits) {
  OwnedJob owned = testing::small_job(1, 2, 4);
  owned.cluster.device.memory = from_gib(0.01);
  owned.finish();
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  const SearchReport report = search(owned.job(), space);
  EXPECT_TRUE(report.ranked.empty());
  EXPECT_TRUE(report.exact);
  EXPECT_EQ(report.outcomes.total(), space.size());
  EXPECT_EQ(report.outcomes[Outcome::simulated], 0u);
  EXPECT_TRUE(std::any_of(report.examples.begin(), report.examples.end(),
                          [](const OutcomeExample& e) { return e.outcome == Outcome::out_of_memory; }));
}

// Every stage's floor must be below the account of every member below it; brute force above would miss a floor that is
// wrong by little. Here one member is its own space.
TEST(Search, FloorsOfMemoryNeverRejectWhatFits) {
  const OwnedJob owned = testing::small_job(2, 4, 8);
  const Job job = owned.job();
  for (const char* key : {"tp2.pp2.dp2.z1.mbs2", "tp1.pp4.vp2.dp2.z0.mbs1.full", "tp2.pp1.cp2.dp2.z3.mbs1",
                          "tp4.pp2.mbs4.full1", "pp2.dp4.z1.mbs1.ao2", "dp8.z1.mbs2.oo50",
                          "pp4.dp2.mbs1.gpipe", "pp4.dp2.mbs1.zb"}) {
    const ParallelPlan p = parse_plan_key(key);
    SearchSpace s;
    s.world = 8;
    s.tp = {p.tp};
    s.cp = {p.cp};
    s.pp = {p.pp};
    s.axis_order = {p.axis_order};
    s.micro_batch = {p.micro_batch};
    s.sequence_parallel = {p.sequence_parallel};
    s.overlap_tp = {p.overlap_tp};
    s.recompute = {p.recompute};
    s.form = {{p.schedule, p.vp}};
    s.split = {StageSplit::even};
    s.zero_stage = {p.zero_stage};
    s.shard_degree = {p.shard_degree};
    s.optimizer_offload = {p.optimizer_offload};
    s.parameter_offload = {p.parameter_offload};
    s.activation_offload = {{p.activation_offload, p.offload_horizon}};
    s.bucket_elements = {p.bucket_elements};
    s.last_bucket_split = {p.last_bucket_split};
    s.overlap_grad_reduce = {p.overlap_grad_reduce};
    s.overlap_param_gather = {p.overlap_param_gather};
    ASSERT_EQ(s.size(), 1u);
    ASSERT_FALSE(unlawful(job, p)) << key;
    const Bytes needed = plan_memory(job, p).peak;
    SearchOptions options;
    options.memory_limit = needed;
    EXPECT_EQ(search(job, s, options).outcomes[Outcome::simulated], 1u) << key;
    options.memory_limit = Bytes(needed.v - 1);
    const OutcomeCounts tight = search(job, s, options).outcomes;
    EXPECT_EQ(tight[Outcome::out_of_memory], 1u) << key;
    EXPECT_EQ(tight.total(), 1u);
  }
}

}  // namespace
}  // namespace sextant
