#include "planner/answers/balance_replicas.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/graph/checks/graph_check.hpp"
#include "core/plan/plan_rules.hpp"
#include "tests/planner/search/search_support.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

double last_done(const std::vector<double>& times, const std::vector<int>& counts, double filling) {
  double last = 0;
  for (std::size_t r = 0; r < times.size(); ++r) last = std::max(last, times[r] * (counts[r] + filling));
  return last;
}

// Every way to share out the micro-batches.
double best_of_all(const std::vector<double>& times, int total, double filling) {
  std::vector<int> counts(times.size(), 1);
  double best = 1e30;
  const std::function<void(std::size_t, int)> share = [&](std::size_t r, int left) {
    if (r + 1 == times.size()) {
      counts[r] = left;
      best = std::min(best, last_done(times, counts, filling));
      return;
    }
    for (counts[r] = 1; counts[r] <= left - static_cast<int>(times.size() - r - 1); ++counts[r])
      share(r + 1, left - counts[r]);
  };
  share(0, total);
  return best;
}

TEST(BalancedMicrobatches, AreTheBestOfAll) {
  for (const std::vector<double>& times :
       {std::vector<double>{1, 1, 1}, {2, 1, 1}, {1, 1, 4}, {1.1, 1, 3, 1}, {1, 20}})
    for (const int total : {4, 7, 12, 17})
      for (const double filling : {0.0, 0.5, 3.0}) {
        const std::vector<int> counts = balanced_microbatches(times, total, filling);
        EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), total);
        EXPECT_GE(std::ranges::min(counts), 1);
        EXPECT_DOUBLE_EQ(last_done(times, counts, filling), best_of_all(times, total, filling));
      }
  EXPECT_LT(best_of_all({2, 1, 1}, 12, 0), last_done({2, 1, 1}, {4, 4, 4}, 0))
      << "control: equal ones are slower";
}

TEST(Microbatches, OfReplicasThatHaveUnequallyMany) {
  const ModelSpec model = testing::tiny_model(4);
  TrainingSpec t = testing::tiny_training(68);
  const auto wrong = [&](const char* key) {
    const auto problems = validate(parse_plan_key(key), model, t);
    return problems.empty() ? std::string("lawful") : to_string(problems.front());
  };
  const ParallelPlan p = parse_plan_key("dp8.z1.mbs1.ga9x7-5");
  EXPECT_EQ(microbatches(p, t), 9);
  EXPECT_EQ(microbatches_of(p, t, 6), 9);
  EXPECT_EQ(microbatches_of(p, t, 7), 5);
  EXPECT_EQ(wrong("dp8.z1.mbs1.ga9x7-5"), "lawful");
  EXPECT_EQ(wrong("dp8.z1.mbs2.ga5x2-4x6"), "lawful");
  EXPECT_NE(
      wrong("dp8.z2.mbs1.ga9x7-5").find("zero_stage: found 2, expected 0 or 1 with replica_microbatches"),
      std::string::npos)
      << wrong("dp8.z2.mbs1.ga9x7-5");
  EXPECT_NE(wrong("dp8.z1.mbs1.ga9x7").find("one number for each of the dp = 8 replicas"), std::string::npos)
      << wrong("dp8.z1.mbs1.ga9x7");
  EXPECT_NE(wrong("dp8.z1.mbs1.ga9x8").find("68 sequences"), std::string::npos) << wrong("dp8.z1.mbs1.ga9x8");
  EXPECT_NE(wrong("dp4.z1.mbs1.ga17x4").find("numbers that differ"), std::string::npos)
      << wrong("dp4.z1.mbs1.ga17x4");
  EXPECT_NE(wrong("dp2.z1.mbs1.ga68-0").find("1 micro-batch or more"), std::string::npos)
      << wrong("dp2.z1.mbs1.ga68-0");
  EXPECT_NE(wrong("dp8.z1.mbs1").find("a divisor of the global batch 68"), std::string::npos)
      << wrong("dp8.z1.mbs1") << "control";
}

// On a node of eight with a GPU half as fast.
TEST(Balanced, SharesOutWhatReplicasCanDo) {
  testing::OwnedJob owned;
  owned.model = testing::tiny_model(8);
  owned.training = testing::tiny_training(60);
  owned.cluster = load_cluster("1x8xh100", test::preset_dir());
  Defect slow;
  slow.node = 0;
  slow.gpu = 3;
  slow.compute_factor = 0.5;
  owned.cluster.defects = {slow};
  owned.stack = testing::able_stack();
  owned.stack.can.uneven_microbatches = true;
  owned.finish();
  const Job job = owned.job();
  const ParallelPlan shape = parse_plan_key("dp8.z1.mbs1");
  const auto plan = balanced(job, shape);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan_key(*plan), "tp1.pp1.vp1.cp1.dp8.z1.mbs1.ga8x3-4-8x4");
  EXPECT_FALSE(balanced(job, parse_plan_key("dp8.z1.mbs8"))) << "60 is no multiple of 8";
  ASSERT_TRUE(best_balanced(job, std::vector{shape}));
  owned.stack.can.uneven_microbatches = false;
  EXPECT_FALSE(balanced(job, shape)) << "control: a stack without";
  owned.stack.can.uneven_microbatches = true;
  owned.training.global_batch = 4'000'004;  // half a million micro-batches of 8 layers
  EXPECT_FALSE(balanced(job, shape)) << "a step of too many operations";
}

// What replicas do together must not belong to a micro-batch that one of them leaves out.
TEST(UnequalReplicas, GraphsAreSound) {
  for (const char* key :
       {"dp2.z1.mbs1.ga5-3", "pp2.dp2.z0.mbs1.ga5-3", "tp2.pp2.vp2.dp2.z1.mbs1.ga2-6.full.ao1",
        "dp2.z1.mbs1.oo50.ga1-7", "pp2.dp2.z1.mbs1.zb.ga5-3"})
    for (const bool tied : {false, true}) {
      ExecutionGraph g = testing::lower_tiny(key, 4, 8, {}, true, tied);
      const auto problems = check(g, StackRules{});
      EXPECT_TRUE(problems.empty()) << key << ": " << to_string(problems.front());
      const auto reduce = std::ranges::find(g.ops, OpRole::grad_reduce, &Op::role);
      ASSERT_NE(reduce, g.ops.end());
      reduce->microbatch = 6;
      EXPECT_FALSE(check_form(g).empty()) << key << ", control";
    }
}

}  // namespace
}  // namespace sextant
