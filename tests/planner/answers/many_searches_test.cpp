// How many GPUs, how little memory, how firm: answers made of several searches.
#include <atomic>
#include <set>

#include <gtest/gtest.h>

#include "planner/explain/explain.hpp"
#include "planner/simulation/robust.hpp"
#include "tests/planner/explain/small_job.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

TEST(Scale, FewestGpusHoldTheDeadline) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const auto curve = scaling_curve(job, {1, 2, 4, 8}, {});
  ASSERT_EQ(curve.size(), 4u);
  for (std::size_t i = 1; i < curve.size(); ++i)
    EXPECT_LT(curve[i].report.ranked.front().prediction.step,
              curve[i - 1].report.ranked.front().prediction.step);
  EXPECT_DOUBLE_EQ(curve.front().efficiency, 1.0);
  EXPECT_LT(curve.back().efficiency, 1.0);
  const Seconds deadline = curve[2].report.ranked.front().prediction.step * 1.001;
  const auto found = fewest_gpus(job, deadline, 8, {});
  ASSERT_TRUE(found.found.has_value());
  EXPECT_EQ(found.found->gpus, 4);
  EXPECT_EQ(found.next_smaller, 3);
  EXPECT_TRUE(found.exact);
  // What the search leaves out for being too slow is not what it looks for.
  EXPECT_EQ(found.found->report.ranked.front().plan, curve[2].report.ranked.front().plan);
  const auto never = fewest_gpus(job, Seconds(1e-6), 8, {});
  EXPECT_FALSE(never.found.has_value());
  ASSERT_TRUE(never.most.has_value());
  EXPECT_EQ(never.most->report.ranked.front().plan, curve[3].report.ranked.front().plan);
  EXPECT_EQ(fewest_gpus(job, std::nullopt, 8, {}).found->gpus, 1);
}

// Against one search per number of GPUs.
TEST(Scale, FewestGpusAreTheFewestOfAllNumbers) {
  const PlanLimits pinned = parse_plan_limits("oo=0,po=off,ao=0", "--fix");
  const auto first = [](const std::vector<ScalePoint>& curve, Seconds deadline) {
    for (const ScalePoint& p : curve)
      if (!p.report.ranked.empty() && p.report.ranked.front().prediction.step <= deadline) return p.gpus;
    return 0;
  };
  const std::vector<int> all = {1, 2, 3, 4, 5, 6, 7, 8};
  std::set<int> answers;
  for (const double memory_GiB : {0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.8}) {
    const OwnedJob owned = job_of(memory_GiB);
    const int expected = first(scaling_curve(owned.job(), all, pinned), Seconds(INFINITY));
    const FewestGpus f = fewest_gpus(owned.job(), std::nullopt, 8, pinned);
    EXPECT_TRUE(f.exact);
    EXPECT_EQ(f.found ? f.found->gpus : 0, expected) << memory_GiB;
    EXPECT_EQ(f.every_to, f.found ? expected - 1 : 8);
    answers.insert(expected);
  }
  EXPECT_TRUE(answers.contains(3) || answers.contains(5) || answers.contains(6) || answers.contains(7));
  const OwnedJob owned = job_of(79);
  const auto curve = scaling_curve(owned.job(), all, pinned);
  for (const ScalePoint& p : curve) {
    const Seconds deadline = p.report.ranked.front().prediction.step * 1.0001;
    const FewestGpus f = fewest_gpus(owned.job(), deadline, 8, pinned);
    ASSERT_TRUE(f.found.has_value());
    EXPECT_TRUE(f.exact);
    EXPECT_EQ(f.found->gpus, first(curve, deadline));
  }
  // Without time for every number, whole nodes are tried, and it says so.
  const FewestGpus hurried = fewest_gpus(owned.job(), std::nullopt, 8, pinned, {}, 1e-9);
  EXPECT_FALSE(hurried.exact);
  EXPECT_EQ(hurried.every_to, 0);
  EXPECT_EQ(hurried.found->gpus, 4);
  EXPECT_TRUE(hurried.in_time);
  // Without time for these either, all of the GPUs are the answer, and nothing is said of fewer.
  SearchOptions no_time;
  no_time.budget_s = 1e-9;
  const FewestGpus spent = fewest_gpus(owned.job(), std::nullopt, 8, pinned, no_time);
  ASSERT_TRUE(spent.found.has_value());
  EXPECT_EQ(spent.found->gpus, 8);
  EXPECT_FALSE(spent.exact);
  EXPECT_FALSE(spent.in_time);
  EXPECT_EQ(spent.next_smaller, 0);
}

TEST(Scale, ParetoFrontTradesTimeForMemory) {
  const OwnedJob owned = job_of(79);
  const auto all = pareto_front(owned.job(), space_of(owned), {}, 0.2);
  EXPECT_TRUE(all.exact);
  const auto& front = all.plans;
  ASSERT_GT(front.size(), 2u);
  for (std::size_t i = 1; i < front.size(); ++i) {
    EXPECT_GE(front[i].prediction.step, front[i - 1].prediction.step);
    EXPECT_LT(front[i].prediction.memory.peak, front[i - 1].prediction.memory.peak);
  }
}

TEST(Scale, LowestMemoryPlansHaveTheLowestMemory) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const SearchSpace space = space_of(owned);
  const LowestMemoryPlans lean = lowest_memory_plans(job, space);
  ASSERT_FALSE(lean.report.ranked.empty());
  EXPECT_LE(lean.report.ranked.front().prediction.memory.peak, lean.limit);
  EXPECT_LT(lean.needs_more, lean.limit);
  EXPECT_EQ(lean.limit.v - lean.needs_more.v, 1);
  EXPECT_TRUE(lean.proved);
  SearchOptions below;
  below.memory_limit = lean.needs_more;
  EXPECT_TRUE(search(job, space, below).ranked.empty());
  below.memory_limit = lean.limit;
  EXPECT_FALSE(search(job, space, below).ranked.empty());
  EXPECT_LE(lean.limit, pareto_front(job, space, {}, 0.2).plans.back().prediction.memory.peak);
}

TEST(Scale, ManySearchesShareOneBudget) {
  const OwnedJob owned = job_of(79);
  SearchOptions hurried;
  hurried.budget_s = 1e-9;
  EXPECT_FALSE(pareto_front(owned.job(), space_of(owned), hurried).exact);
  std::atomic<bool> cancel{true};
  SearchOptions stopped;
  stopped.cancel = &cancel;
  EXPECT_TRUE(scaling_curve(owned.job(), {1, 2}, {}, stopped).empty());
}

TEST(Robust, JitterCostsTimeAndRepeats) {
  const OwnedJob owned = job_of(79);
  const Job job = owned.job();
  const ParallelPlan plan = parse_plan_key("tp2.pp2.dp2.z1.mbs1");
  const Seconds steady = predict(job, plan).step;
  const RobustStep none = robust_step(job, plan, {});
  EXPECT_NEAR(none.mean.v / steady.v, 1, 1e-12);
  EXPECT_DOUBLE_EQ(none.p90.v, steady.v);
  const JitterSpec jitter{0.05, 0.2};
  const RobustStep some = robust_step(job, plan, jitter), again = robust_step(job, plan, jitter);
  EXPECT_GT(some.mean, steady);
  EXPECT_GT(some.p90, some.p50);
  EXPECT_EQ(some.p90, again.p90);
  EXPECT_NE(some.p90, robust_step(job, plan, jitter, {64, 2}).p90);
  // Only what leaves the node feels the network.
  const JitterSpec network{0.0, 0.3};
  const RobustStep inside = robust_step(job, parse_plan_key("tp4.pp1.dp1.mbs1"), network);
  EXPECT_DOUBLE_EQ(inside.p90.v, inside.p50.v);
}

// System: a model that is off by next to nothing, on a machine that varies much. Expectation: what one step of ten exceeds
// lies within the interval of nine of ten; without jitter the interval is the model's.
TEST(Robust, IntervalHoldsTheSpreadOfJitter) {
  OwnedJob owned = job_of(79);
  const ParallelPlan plan = parse_plan_key("tp2.pp2.dp2.z1.mbs1");
  for (const double model : {1e-3, 1.0})
    for (const JitterSpec jitter : {JitterSpec{0.05, 0.2}, JitterSpec{0.2, 0.0}, JitterSpec{1e-4, 0.0}}) {
      owned.cluster.jitter = jitter;
      const Job job = owned.job();
      const Prediction still = predict(job, plan, model);
      const RobustStep sampled = robust_step(job, plan, jitter);
      const Prediction p = expected(still, sampled);
      EXPECT_EQ(p.step, std::max(still.step, sampled.mean));
      EXPECT_LE(p.step_lower, sampled.p05);
      EXPECT_GE(p.step_upper, sampled.p90);
      EXPECT_GE(p.step_upper, sampled.p95);
      EXPECT_GE(p.step_upper / p.step, still.step_upper / still.step * (1 - 1e-12));
      EXPECT_LE(p.step_lower / p.step, still.step_lower / still.step * (1 + 1e-12));
      EXPECT_EQ(ranked_step(p, RankBy::p90), sampled.p90);
      EXPECT_EQ(ranked_step(p, RankBy::undisturbed), still.step);
    }
  owned.cluster.jitter = {};
  const Prediction still = predict_under(owned.job(), plan, RankBy::p90);
  EXPECT_FALSE(still.jitter);
  EXPECT_EQ(ranked_step(still, RankBy::p90), still.step);
}

TEST(Robust, ComparisonsAreOfTheStepThatRanks) {
  OwnedJob owned = job_of(79);
  owned.cluster.jitter = {0.05, 0.3};
  const Job job = owned.job();
  const ParallelPlan a = parse_plan_key("tp2.pp2.dp2.z1.mbs1"), b = parse_plan_key("tp4.pp2.dp1.mbs1");
  for (const RankBy by : {RankBy::undisturbed, RankBy::expected, RankBy::p90}) {
    const Comparison c = compare(job, a, b, by);
    const Seconds first = ranked_step(predict_under(job, a, by), by),
                  other = ranked_step(predict_under(job, b, by), by);
    EXPECT_NEAR(c.slower, other / first - 1, 1e-9);
    EXPECT_NEAR((c.best_step - c.best_jitter).v, predict(job, a).step.v, 1e-9 * first.v);
    EXPECT_EQ(c.best_jitter > Seconds(0), by != RankBy::undisturbed);
    EXPECT_EQ(why_not(job, b, a, by).comparison->other_step, c.other_step);
  }
}

}  // namespace
}  // namespace sextant
