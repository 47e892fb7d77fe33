// Steps predicted with a table of measured works. Expectation: an empty table changes nothing; a whole one is the simulation
// of its times and nothing else; shares are those of the operations that a compute lane runs or waits for; and layouts ranked
// anew are in the order of the table's steps, with no proof left.
#include <gtest/gtest.h>

#include "core/plan/plan_key.hpp"
#include "core/timeline/work_profile.hpp"
#include "cost_models/profiled.hpp"
#include "planner/answers/rerank.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using namespace testing;

// Every work of the plan for which `take` says by how much it is longer than modelled; 0: left out.
template <class Take>
WorkProfile table_of(const Job& job, const std::string& key, const Take& take) {
  WorkProfile profile;
  const ParallelPlan plan = parse_plan_key(key);
  for (const Work& work :
       lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {.operands = false})
           .works) {
    const double us = 1e6 * take(work) * job.cost.price(work).duration.v;
    if (us > 0) profile.works[work_key(work)] = {.mean_us = us, .median_us = us};
  }
  return profile;
}
Job with(const Job& job, const CostModel& cost) {
  return {job.model,       job.training, job.cluster, job.topology, job.stack, cost, job.interval,
          job.uncertainty, nullptr,      0,           true};
}
bool is_block(const Work& work) { return std::holds_alternative<BlockWork>(work); }

class ProfiledSteps : public ::testing::Test {
 protected:
  const OwnedJob owned_ = [] {
    OwnedJob o = small_job();
    o.stack.kernels.comm_slows_compute = 0.2;
    o.stack.kernels.compute_slows_comm = 0.1;
    o.finish();
    return o;
  }();
  const Job job_ = owned_.job();
  static constexpr const char* kKeys[] = {"dp8.z1.mbs1", "tp2.sp.pp2.dp2.z1.mbs1", "dp8.z3.mbs2",
                                          "pp4.vp2.dp2.mbs1.full", "dp8.z2.mbs1.oo50"};
};

TEST_F(ProfiledSteps, AnEmptyTableChangesNothing) {
  const ProfiledCostModel table(WorkProfile{}, job_.cost);
  for (const char* key : kKeys) {
    const Prediction plain = predict(job_, parse_plan_key(key)),
                     same = predict(with(job_, table), parse_plan_key(key));
    EXPECT_NEAR(same.step / plain.step, 1, 1e-12) << key;
    EXPECT_NEAR(same.exposed_share, plain.exposed_share, 1e-9) << key;
    EXPECT_FALSE(plain.predicted_from.has_value());
    ASSERT_TRUE(same.predicted_from.has_value());
    EXPECT_EQ(same.predicted_from->analytic, 1) << key;
  }
}

// Measured times hold what ran beside them: nothing is lengthened once more.
TEST_F(ProfiledSteps, AWholeTableIsItsTimes) {
  StackSpec quiet = owned_.stack;
  quiet.kernels.comm_slows_compute = quiet.kernels.compute_slows_comm = 0;
  for (const char* key : kKeys) {
    const ParallelPlan plan = parse_plan_key(key);
    const ProfiledCostModel table(table_of(job_, key, [](const Work&) { return 1.0; }), job_.cost);
    const Prediction p = predict(with(job_, table), plan);
    const Job undisturbed{job_.model, job_.training, job_.cluster,  job_.topology,
                          quiet,      job_.cost,     job_.interval, job_.uncertainty};
    EXPECT_NEAR(p.step / predict(undisturbed, plan).step, 1, 1e-9) << key;
    EXPECT_NEAR(p.predicted_from->measured, 1, 1e-12) << key;
    const ProfiledCostModel slower(table_of(job_, key, [](const Work&) { return 1.5; }), job_.cost);
    const Seconds host = measured_step(job_, plan, Seconds(0));
    EXPECT_NEAR((predict(with(job_, slower), plan).step - host) / (p.step - host), 1.5, 1e-9) << key;
  }
}

TEST_F(ProfiledSteps, SharesAreOfWhatLanesRunAndWaitFor) {
  for (const char* key : kKeys) {
    const ParallelPlan plan = parse_plan_key(key);
    const ProfiledCostModel table(table_of(job_, key, [](const Work& w) { return is_block(w) ? 1.0 : 0.0; }),
                                  job_.cost);
    const Job profiled = with(job_, table);
    const Prediction p = predict(profiled, plan);
    const CostShares& s = *p.predicted_from;
    EXPECT_NEAR(s.measured + s.interpolated + s.analytic, 1, 1e-12) << key;
    const Breakdown step = step_breakdown(profiled, plan);
    const auto in = [&](TimeCategory c) { return step.mean[static_cast<std::size_t>(c)]; };
    const double own = step.step.v - in(TimeCategory::bubble)-in(TimeCategory::imbalance);
    EXPECT_NEAR(s.measured, (in(TimeCategory::compute) + in(TimeCategory::recompute)) / own, 1e-9) << key;
    EXPECT_GT(s.analytic, 0) << key;
  }
}

TEST_F(ProfiledSteps, WhatLiesBetweenIsInterpolated) {
  WorkProfile profile = table_of(job_, "dp8.z1.mbs1", [](const Work& w) { return is_block(w) ? 2.0 : 0.0; });
  profile.works.merge(
      table_of(job_, "dp4.tp2.z1.mbs4", [](const Work&) { return 0.0; }).works);  // nothing: control
  const ParallelPlan plan = parse_plan_key("dp4.pp2.z1.mbs2");
  const auto shares = [&] {
    const ProfiledCostModel table(profile, job_.cost);
    return *predict(with(job_, table), plan).predicted_from;
  };
  EXPECT_EQ(shares().interpolated, 0);
  profile.works.merge(
      table_of(job_, "dp4.pp2.z1.mbs4", [](const Work& w) { return is_block(w) ? 2.0 : 0.0; }).works);
  EXPECT_GT(shares().interpolated, 0.5);
}

TEST_F(ProfiledSteps, RankedAnewByTheTable) {
  const SearchSpace space = default_space(job_.model, job_.training, job_.cluster.device, 8, {});
  SearchOptions how;
  how.top = 12;
  SearchReport report = search(job_, space, how);
  ASSERT_GT(report.ranked.size(), 3U);
  const std::string best = plan_key(report.ranked.front().plan);
  const auto all = report.ranked;
  // On a machine that takes three times as long for each work of the best layout.
  const ProfiledCostModel table(table_of(job_, best, [](const Work&) { return 3.0; }), job_.cost);
  const RankedAnew before = rank_anew(with(job_, table), RankBy::undisturbed, 3, 0.02, report);
  EXPECT_EQ(plan_key(before.first.plan), best);
  EXPECT_TRUE(before.proved);
  EXPECT_EQ(before.layouts, all.size());
  EXPECT_FALSE(report.exact);
  EXPECT_FALSE(report.stopped.empty());
  ASSERT_EQ(report.ranked.size(), 3U);
  EXPECT_NE(plan_key(report.ranked.front().plan), best);
  for (const RankedPlan& r : all)
    EXPECT_GE(predict(with(job_, table), r.plan).step, report.ranked.front().prediction.step);
  EXPECT_EQ(report.ranked.front().slower, 0);
  EXPECT_GE(report.ranked[2].slower, report.ranked[1].slower);
  EXPECT_TRUE(report.ranked.front().prediction.predicted_from.has_value());
  SearchReport none;
  EXPECT_EQ(rank_anew(with(job_, table), RankBy::undisturbed, 3, 0.02, none).layouts, 0U);
}

}  // namespace
}  // namespace sextant
