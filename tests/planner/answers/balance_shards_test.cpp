#include "planner/answers/balance_shards.hpp"

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/graph/checks/graph_check.hpp"
#include "tests/planner/search/search_support.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

TEST(BalancedWeights, AreAsSpeedsAre) {
  using Weights = std::vector<int>;
  EXPECT_EQ(balanced_weights(std::vector{1.0, 0.5, 1.0}, 2), (Weights{2, 1, 2}));
  EXPECT_EQ(balanced_weights(std::vector{1.0, 0.5, 1.0}, 16), (Weights{2, 1, 2})) << "no common divisor";
  EXPECT_EQ(balanced_weights(std::vector{1.0, 0.75}, 4), (Weights{4, 3}));
  EXPECT_EQ(balanced_weights(std::vector{1.0, 0.01}, 4), (Weights{4, 1})) << "nothing owns nothing";
  EXPECT_EQ(balanced_weights(std::vector{0.5, 0.5}, 8), Weights{});
  EXPECT_EQ(balanced_weights(std::vector{1.0, 0.9}, 3), Weights{}) << "too coarse to tell";
}

// A node of eight with a GPU half as fast.
struct SlowNode : testing::OwnedJob {
  explicit SlowNode(double factor) {
    model = testing::tiny_model(8);
    model.hidden = 2048;
    model.ffn_hidden = 8192;
    model.vocab_size = 65536;
    training = testing::tiny_training(8);
    cluster = load_cluster("1x8xh100", test::preset_dir());
    Defect slow;
    slow.node = 0;
    slow.gpu = 3;
    slow.compute_factor = factor;
    if (factor < 1) cluster.defects = {slow};
    stack = testing::able_stack();
    stack.can.uneven_shards = true;
    finish();
  }
};

TEST(BalancedShards, AreTakenWhereTheyShortenTheStep) {
  SlowNode node(0.5);
  const Job job = node.job();
  // The whole optimizer on the host: its update is what the step waits for.
  const ParallelPlan equal = parse_plan_key("dp8.z1.mbs1.oo100");
  const auto plan = with_balanced_shards(job, equal);
  ASSERT_TRUE(plan);
  EXPECT_LT(plan->shard_weights[3], plan->shard_weights[0]) << plan_key(*plan);
  EXPECT_EQ(plan->shard_weights[0], plan->shard_weights[7]) << plan_key(*plan);
  const Prediction before = predict(job, equal), after = predict(job, *plan);
  EXPECT_LT(after.step.v, 0.95 * before.step.v);
  EXPECT_GE(after.memory.peak, before.memory.peak) << "the largest slice is what fits";
  EXPECT_FALSE(unlawful(job, *plan));

  const SlowNode sound(1);
  EXPECT_FALSE(with_balanced_shards(sound.job(), equal)) << "control: all are as fast";
  EXPECT_FALSE(with_balanced_shards(job, parse_plan_key("dp8.z0.mbs1"))) << "nothing is sharded";
  node.stack.can.uneven_shards = false;
  EXPECT_FALSE(with_balanced_shards(job, equal)) << "control: a stack without";
  EXPECT_TRUE(unlawful(job, *plan)) << "control: a stack without";
}

// An update of a slow rank takes as long as its speed says, however few micro-batches it has.
TEST(UpdateFactors, AreThoseOfTheSlowestForWhatItOwns) {
  SlowNode node(0.5);
  node.stack.can.uneven_microbatches = true;
  node.training.global_batch = 60;
  const Job job = node.job();
  EXPECT_EQ(stage_update_factors(job, parse_plan_key("dp8.z1.mbs1.ga8x3-4-8x4")), std::vector{2.0});
  EXPECT_EQ(stage_compute_factors(job, parse_plan_key("dp8.z1.mbs1.ga8x3-4-8x4")), std::vector{1.0});
  EXPECT_EQ(stage_update_factors(job, parse_plan_key("dp8.z1.mbs1.ga8x3-4-8x4.sw2x3-1-2x4")),
            std::vector{1.0});
  EXPECT_TRUE(stage_update_factors(job, parse_plan_key("dp8.z1.mbs1")).empty()) << "as on compute";
}

TEST(UnequalShards, GraphsAreSound) {
  for (const char* key :
       {"dp2.z1.mbs1.sw2-1", "pp2.dp2.z2.mbs1.sw1-3", "tp2.pp2.vp2.dp2.z1.mbs1.sw5-2.full.ao1",
        "dp2.z1.mbs1.oo50.sw1-2", "dp4.z3.sd2.mbs1.sw1-2", "dp2.z3.mbs1.po.oo50.sw3-1"})
    for (const bool tied : {false, true}) {
      ExecutionGraph g = testing::lower_tiny(key, 4, 8, {}, true, tied);
      const auto problems = check(g, StackRules{});
      EXPECT_TRUE(problems.empty()) << key << ": " << to_string(problems.front());
      g.plan.shard_weights.clear();
      EXPECT_FALSE(check(g, StackRules{}).empty()) << key << ", control: of another cut";
    }
}

}  // namespace
}  // namespace sextant
