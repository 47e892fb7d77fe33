// What a search simulates before the tree is walked: its best step is close to the best there is.
#include <algorithm>
#include <cmath>
#include <utility>

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "planner/search/search.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/search/stage_split.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using testing::OwnedJob;

// The best step before the tree is walked, and what is found in the end.
std::pair<Seconds, SearchReport> first_and_last(const OwnedJob& owned, const SearchSpace& space) {
  SearchOptions options;
  options.top = 1;
  options.move_layers = false;  // of the space alone
  Seconds early(INFINITY);
  options.progress = [&](std::uint64_t simulated, Seconds best) {
    if (simulated == 0) early = best;
  };
  SearchReport report = search(owned.job(), space, options);
  EXPECT_FALSE(report.ranked.empty());
  EXPECT_TRUE(report.exact);
  return {early, std::move(report)};
}

// Before the tree is walked there is a plan close to the best; and bounds spare what they should.
TEST(Search, ClimbsFromItsFirstGuesses) {
  const OwnedJob owned = testing::slow_network_job();
  const Job job = owned.job();
  SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  space.form = {{PipelineSchedule::one_f_one_b, 1}, {PipelineSchedule::interleaved, 2}};
  space.activation_offload = {{0, 1}};
  space.optimizer_offload = {0};
  space.parameter_offload = {0};
  space.zero_stage = {0, 1};
  space.shard_degree = {0};
  SearchOptions options;
  options.move_layers = false;
  Seconds early(INFINITY);
  options.progress = [&](std::uint64_t simulated, Seconds best) {
    if (simulated == 0) early = best;
  };
  const SearchReport report = search(job, space, options);
  ASSERT_FALSE(report.ranked.empty());
  EXPECT_TRUE(report.exact);
  EXPECT_LT(early / report.ranked.front().prediction.step, 1.05);
  EXPECT_LT(report.outcomes[Outcome::simulated], 300u);
}

// So has a stack that shards nothing or gradients too, and where parameters are best kept on the host.
TEST(Search, GuessesForStacksWithoutShardedOptimizersAlone) {
  for (const double memory_GiB : {79.0, 2.0}) {
    OwnedJob owned = testing::small_job(2, 4, 8);
    owned.stack.can.zero_stages = {0, 2, 3};
    owned.stack.rules.reduce_every_microbatch = true;
    owned.stack.can.activation_offload = false;
    owned.cluster.device.memory = from_gib(memory_GiB);
    owned.finish();
    const SearchSpace space =
        default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
    const auto [early, report] = first_and_last(owned, space);
    EXPECT_LT(early / report.ranked.front().prediction.step, 1.05) << memory_GiB;
  }
}

// A job of presets, and a space of few divisions of its ranks.
struct PresetJob {
  OwnedJob owned;
  SearchSpace space;
  PresetJob(const char* model, const char* cluster, const char* stack, int global_batch) {
    owned.model = load_model(model, test::preset_dir());
    owned.cluster = load_cluster(cluster, test::preset_dir());
    owned.stack = load_stack(stack, test::preset_dir());
    owned.training.seq_len = 8192;
    owned.training.global_batch = global_batch;
    owned.finish();
    space = default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
    space.micro_batch = {1};
    space.split = {StageSplit::even};
    space.axis_order.resize(1);
    space.recompute = {{RecomputeKind::none, -1}, {RecomputeKind::full, -1}};
  }
};

// And where they are there together with the optimizer state or not at all: two fields away from any other layout.
TEST(Search, GuessesWhatIsOnTheHostTogether) {
  PresetJob j("llama-3-70b", "16x8xh100", "torchtitan", 512);
  StackCapabilities& can = j.owned.stack.can;
  can.offload_with_pp = true;
  can.max_zero_with_pp = 3;
  can.parameter_offload_from_zero = can.optimizer_offload_from_zero = 2;
  j.owned.stack.rules.reduce_every_microbatch_with_pp = true;
  j.space.tp = {2, 4};
  j.space.cp = {1, 2};
  j.space.pp = {1, 2};
  j.space.shard_degree = {0};
  bool on_host = false;  // with less memory, sooner or later the fastest is there
  for (const double memory_GiB :
       {79.0, 70.0, 60.0, 50.0, 40.0, 36.0, 32.0, 30.0, 28.0, 26.0, 25.0, 24.0, 23.0, 22.0, 21.0, 20.0}) {
    j.owned.cluster.device.memory = from_gib(memory_GiB);
    j.owned.finish();
    const auto [early, report] = first_and_last(j.owned, j.space);
    if (report.ranked.empty()) break;
    const ParallelPlan& best = report.ranked.front().plan;
    if (!best.parameter_offload || best.optimizer_offload != 1) continue;
    on_host = true;
    EXPECT_LT(early / report.ranked.front().prediction.step, 1.01) << memory_GiB;
    break;
  }
  EXPECT_TRUE(on_host);
}

// And where all is sharded and activations are on the host, of a stack that has stages with less as well: many fields away
// from what most would try.
TEST(Search, GuessesWhatIsShardedWithActivationsOnTheHost) {
  PresetJob j("llama-3.1-405b", "256x8xh100", "sextant", 2048);
  j.space.tp = {2, 4};
  j.space.cp = {1, 4};
  j.space.pp = {1, 16};
  j.space.shard_degree = {0, 256};
  const auto [early, report] = first_and_last(j.owned, j.space);
  EXPECT_EQ(report.ranked.front().plan.zero_stage, 3);
  EXPECT_GT(report.ranked.front().plan.activation_offload, 0);
  EXPECT_LT(early / report.ranked.front().prediction.step, 1.02) << plan_key(report.ranked.front().plan);
}

// As little of the optimizer leaves the device as fits, whatever the choice said of it.
TEST(Search, MakesRoomWithTheLeastShare) {
  OwnedJob owned = testing::small_job(2, 4, 8);
  owned.cluster.device.memory = Bytes(3 * 18 * parameter_counts(owned.model).total / 8);
  owned.finish();
  const Job job = owned.job();
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  ASSERT_TRUE(space.tight);
  const SearchTree tree(job, space, owned.cluster.device.memory);
  SearchCache cache(job, space);
  int between = 0, none = 0;
  for (std::size_t mbs = 0; mbs < space.micro_batch.size(); ++mbs)
    for (std::size_t z = 0; z < space.zero_stage.size(); ++z) {
      Choice c;
      c.micro_batch = small(mbs);
      c.zero_stage = small(z);
      const auto found = tree.with_least_share(c, cache);
      ParallelPlan p = tree.plan(found.value_or(c), cache);
      const double share = p.optimizer_offload;
      for (const double other : space.optimizer_offload) {
        p.optimizer_offload = other;
        EXPECT_EQ(!unlawful(job, p) && tree.fits(p), found && other >= share) << plan_key(p);
      }
      between += found && share > 0 && share < 1;
      none += !found;
    }
  EXPECT_GT(between, 0);
  EXPECT_GT(none, 0);
}

}  // namespace
}  // namespace sextant
