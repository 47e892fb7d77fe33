// What layouts share beyond constants: its kernel, a search under it, and which runs tell the most of it.
#include "planner/simulation/residual.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "planner/calibration/suggest.hpp"
#include "planner/search/search.hpp"
#include "tests/planner/calibration/small_row.hpp"
#include "tests/planner/search/search_support.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

const LayoutPoint kPoint{"ampere", 4, 2, 8, 4096, 7e9, 1};

TEST(Residual, LayoutsAreAlikeByTheDoublingsBetweenThem) {
  EXPECT_DOUBLE_EQ(likeness(kPoint, kPoint, 2), 1);
  LayoutPoint other = kPoint;
  other.tp = 16;
  EXPECT_NEAR(likeness(kPoint, other, 2), std::exp(-0.5), 1e-12);  // two doublings, one length
  other.zero_stage = 3;
  EXPECT_NEAR(likeness(kPoint, other, 2), std::exp(-1.0), 1e-12);
  EXPECT_DOUBLE_EQ(likeness(kPoint, other, 2), likeness(other, kPoint, 2));
  other = kPoint;
  other.generation = "hopper";
  EXPECT_EQ(likeness(kPoint, other, 2), 0);
}

TEST(Residual, NoLayoutIsBelowTheLeast) {
  Residual r{{0.06, 2}, {{kPoint, 20}, {kPoint, -15}}};
  r.runs[1].point.tp = 1;
  r.runs[1].point.parameters = 13e9;
  const double least = r.least_log_factor("ampere", 7e9);
  EXPECT_LT(least, 0);
  double lowest = 0;
  for (const int tp : {1, 2, 4, 8})
    for (const int dp : {1, 4, 8, 64}) {
      LayoutPoint p = kPoint;
      p.tp = tp;
      p.dp = dp;
      lowest = std::min(lowest, r.log_factor(p));
      EXPECT_GE(r.log_factor(p), least);
    }
  EXPECT_LT(lowest, 0);  // the bound is of something
  EXPECT_EQ(r.least_log_factor("hopper", 7e9), 0);
}

// The same graph is the same layout: ZeRO 1 of one rank shards nothing.
TEST(Residual, ShardsOfOneRankAreNone) {
  ParallelPlan plan;
  plan.tp = 8;
  plan.zero_stage = 1;
  const auto stage = [&] { return layout_point(testing::tiny_model(2), {}, plan, "ampere").zero_stage; };
  EXPECT_EQ(stage(), 0);
  plan.dp = 2;
  EXPECT_EQ(stage(), 1);
}

// The fastest of a space under what was learned is the fastest of all its members, and not the one of before.
TEST(Residual, SearchUnderItEqualsBruteForce) {
  const auto owned = testing::small_job(1, 4, 4);
  SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device, 4, {});
  const auto one = [](auto& list) { list.resize(1); };
  one(space.cp);
  one(space.axis_order);
  one(space.optimizer_offload);
  one(space.parameter_offload);
  one(space.activation_offload);
  one(space.bucket_elements);
  one(space.last_bucket_split);
  one(space.overlap_grad_reduce);
  one(space.overlap_param_gather);
  one(space.split);
  one(space.shard_degree);
  std::erase_if(space.recompute, [](const Recompute& r) { return r.kind == RecomputeKind::full; });
  space.form = {{PipelineSchedule::one_f_one_b, 1}};
  SearchOptions options;
  options.move_layers = false;
  const auto fastest = [&](const Job& job) {
    double best = INFINITY;
    testing::each_member(space, [&](const Choice& c) {
      if (space.world % (space.tp[c.tp] * space.cp[c.cp] * space.pp[c.pp]) != 0) return;
      const ParallelPlan plan = plan_of(space, c);
      if (unlawful_reason(job, plan) || too_large(job, plan_memory(job, plan))) return;
      best = std::min(best, predict(job, plan).step.v);
    });
    return best;
  };
  const RankedPlan before = search(owned.job(), space, options).ranked.front();
  const Job plain = owned.job();
  // The winner of before turns out to be slower, and layouts far from it faster.
  Residual learned{
      {0.2, 1},
      {{layout_point(owned.model, owned.training, before.plan, owned.cluster.device.generation), 8}}};
  LayoutPoint fast = learned.runs.front().point;
  fast.tp = fast.tp == 4 ? 1 : 4;
  fast.dp = fast.dp == 4 ? 1 : 4;
  learned.runs.push_back({fast, -6});
  const Job job{plain.model, plain.training,    plain.cluster, plain.topology, plain.stack, plain.cost,
                1.0,         plain.uncertainty, &learned};
  const SearchReport report = search(job, space, options);
  ASSERT_TRUE(report.exact);
  ASSERT_FALSE(report.ranked.empty());
  EXPECT_NEAR(report.ranked.front().prediction.step.v / fastest(job), 1, 1e-6);
  EXPECT_NEAR(report.ranked.front().prediction.step.v, predict(job, report.ranked.front().plan).step.v,
              1e-12);
  EXPECT_NE(plan_key(report.ranked.front().plan), plan_key(before.plan));
  EXPECT_NEAR(before.prediction.step.v / fastest(plain), 1, 1e-6);
}

class Suggest : public ::testing::Test {
 protected:
  const std::filesystem::path presets_ = test::preset_dir();
  const CalibrationRules rules_ = load_calibration_rules(presets_);

  static RunRow row(int hidden, int micro_batch, int tp, int pp) {
    RunRow r = small_row(hidden, micro_batch, tp, pp);
    r.run_id = "candidate";
    r.step_time = Seconds(1);
    return r;
  }
  std::vector<MeasuredRun> candidates() const {
    // The first three are one layout.
    std::vector<RunRow> rows = {row(4096, 1, 1, 1), row(4096, 1, 1, 1), row(4096, 1, 1, 1),
                                row(4096, 2, 1, 1), row(4096, 1, 8, 1), row(4096, 1, 1, 4),
                                row(2048, 8, 1, 1), row(8192, 1, 4, 2)};
    return measured_runs(rows, load_framework_map(presets_), presets_);
  }
  Suggestions suggested(std::span<const MeasuredRun> runs, std::size_t n,
                        std::span<const std::size_t> known = {}) const {
    return suggest_runs(runs, known, n, presets_, rules_, constants_of(runs, presets_, rules_));
  }
};

TEST_F(Suggest, EachLeavesLessUncertaintyAndNoneIsALayoutTwice) {
  const auto runs = candidates();
  const Suggestions all = suggested(runs, runs.size());
  ASSERT_EQ(all.runs.size(), runs.size());
  double before = all.uncertainty;
  std::set<std::size_t> seen;
  for (const Suggestion& s : all.runs) {
    EXPECT_LT(s.uncertainty, before);
    EXPECT_TRUE(seen.insert(s.run).second);
    before = s.uncertainty;
  }
  // Of the three that are one layout no second comes before any other layout.
  int twins = 0;
  for (std::size_t i = 0; i < 6; ++i) twins += all.runs[i].run < 3;
  EXPECT_EQ(twins, 1);
  // The first is the best: after any other alone more uncertainty is left.
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t known[] = {i};
    EXPECT_GE(suggested(runs, 0, known).uncertainty, all.runs.front().uncertainty - 1e-12);
  }
}

TEST_F(Suggest, LooksAtNothingMeasured) {
  auto runs = candidates();
  const Suggestions before = suggested(runs, 4);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].step = Seconds(0.5 + static_cast<double>(i));
  const Suggestions after = suggested(runs, 4);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(before.runs[i].run, after.runs[i].run);
  // Negative control: what is known already is not named again, and changes what is.
  const std::size_t known[] = {before.runs.front().run};
  EXPECT_EQ(suggested(runs, 1, known).runs.front().run, before.runs[1].run);
}

}  // namespace
}  // namespace sextant
