#include "core/breakdown.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/trace.hpp"
#include "planner/simulate.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

double at(const TimeSplit& split, TimeCategory c) { return split[static_cast<std::size_t>(c)]; }

TEST(Breakdown, EveryStageSumsToTheStep) {
  for (const char* key :
       {"mbs1", "tp2.pp2.dp2.z1.mbs1", "pp4.vp2.mbs1.full", "dp4.z3.mbs1", "pp4.mbs1.zb",
        "tp2.cp2.dp2.z1.mbs1", "dp2.z1.mbs1.oo50", "pp2.mbs1.ao2", "dp4.z1.mbs1.nogr.nopg"}) {
    const auto g = lower_tiny(key, 8, 16, {}, false);
    const auto b = breakdown(g, simulate(g, price(g, HashedCost{})));
    for (const TimeSplit& stage : b.stages) {
      double sum = 0;
      for (const double seconds : stage) sum += seconds;
      EXPECT_NEAR(sum, b.step.v, 1e-9 * b.step.v) << key;
      for (const double seconds : stage) EXPECT_GE(seconds, 0) << key;
    }
  }
}

// System: 4 uniform stages, 16 micro-batches, free links. Expectation: bubble (pp - 1)(tf + tb), no imbalance.
TEST(Breakdown, BubbleOfUniformStagesIsTheClosedForm) {
  const auto g = lower_tiny("pp4.mbs1", 8, 16, {}, false);
  const auto b = breakdown(g, simulate(g, price(g, LayerCost(1, 2))));
  for (const TimeSplit& stage : b.stages) {
    EXPECT_DOUBLE_EQ(at(stage, TimeCategory::bubble), 3 * 3.0 * 2);
    EXPECT_DOUBLE_EQ(at(stage, TimeCategory::imbalance), 0);
    EXPECT_DOUBLE_EQ(at(stage, TimeCategory::compute), 16 * 3.0 * 2);
  }
}

TEST(Breakdown, ALighterStageShowsImbalance) {
  const auto g = lower_tiny("pp2.mbs1.L2-6", 8, 16, {}, false);
  const auto b = breakdown(g, simulate(g, price(g, LayerCost(1, 2))));
  EXPECT_GT(at(b.stages[0], TimeCategory::imbalance), 16 * 3.0 * 3);
  EXPECT_DOUBLE_EQ(at(b.stages[1], TimeCategory::imbalance), 0);
}

TEST(Breakdown, NonOverlappedReductionIsExposed) {
  const auto split = [](const char* key) {
    const auto g = lower_tiny(key, 8, 16, {}, false);
    return breakdown(g, simulate(g, price(g, HashedCost{}))).mean;
  };
  // Without data parallelism only the norm's all-reduce remains.
  EXPECT_GT(at(split("dp4.z1.mbs1.nogr.nopg"), TimeCategory::exposed_dp),
            at(split("dp1.mbs4"), TimeCategory::exposed_dp));
}

TEST(Trace, IsJsonWithOneSpanPerLaneAndMatchedFlows) {
  const auto g = lower_tiny("tp2.pp2.dp2.z1.mbs1");
  const auto timeline = simulate(g, price(g, HashedCost{}));
  const auto trace = nlohmann::json::parse("[" + trace_events(g, timeline) + "]");
  std::size_t spans = 0, counters = 0;
  int flows = 0;
  for (const auto& event : trace) {
    const std::string phase = event.at("ph");
    spans += phase == "X";
    counters += phase == "C";
    flows += phase == "s" ? 1 : phase == "f" ? -1 : 0;
  }
  std::size_t two_lanes = 0;
  for (const Op& op : g.ops) two_lanes += op.lanes[1] != kNoLane;
  EXPECT_EQ(spans, g.ops.size() + two_lanes);
  EXPECT_EQ(flows, 0);
  EXPECT_GT(two_lanes, 0u);
  EXPECT_GT(counters, 10u);
}

TEST(Trace, ArrowsShowWhatReductionsAndGathersWaitFor) {
  // Without a pipeline there are no transfers; with one replica nothing is waited for either.
  const auto waits = [](const char* key) {
    const auto g = lower_tiny(key);
    int n = 0;
    for (const auto& event :
         nlohmann::json::parse("[" + trace_events(g, simulate(g, price(g, HashedCost{}))) + "]"))
      n += event.at("ph") == "s" && event.at("name") == "wait";
    return n;
  };
  EXPECT_GT(waits("dp4.z1.mbs1"), 0);
  EXPECT_EQ(waits("dp1.mbs1"), 0);
}

}  // namespace
}  // namespace sextant
