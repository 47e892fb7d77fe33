#include "core/timeline/breakdown.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/graph/graph_memory.hpp"
#include "core/timeline/trace.hpp"
#include "planner/simulation/simulate.hpp"
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
    double by_work = at(b.mean, TimeCategory::bubble) + at(b.mean, TimeCategory::imbalance);
    for (const double seconds : b.by_work) by_work += seconds;
    EXPECT_NEAR(by_work, b.step.v, 1e-9 * b.step.v) << key;
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

// Each of several micro-batches waits for its own reductions, bucket by bucket.
TEST(Breakdown, ReductionsOfEveryMicrobatchAreExposedWithoutOverlap) {
  StackSpec stack;
  stack.rules.reduce_every_microbatch = true;
  const auto exposed = [&](const char* key) {
    const auto g = lower_tiny(key, 8, 16, stack, false);
    return at(breakdown(g, simulate(g, price(g, HashedCost{}))).mean, TimeCategory::exposed_dp);
  };
  const double once = exposed("dp4.z1.mbs1.b2K.nogr.nopg"), four_times = exposed("dp4.z2.mbs1.b2K.nogr.nopg");
  EXPECT_GT(four_times, 3 * once);
  EXPECT_LT(exposed("dp4.z2.mbs1.b2K.nopg"), four_times) << "the negative control";
}

// What reductions of every micro-batch hold up is theirs, not the optimizer's, whose part is what it does itself.
TEST(Breakdown, WaitsForTheEndOfAReductionAreExposed) {
  StackSpec stack;
  stack.rules.reduce_every_microbatch = true;
  stack.rules.bucket_elements = 1;
  stack.rules.bucket_elements_per_replica = 0;
  const auto g = lower_tiny("dp4.z2.mbs1", 8, 16, stack, false);
  const Timeline t = simulate(g, price(g, HashedCost{}));
  double own = 0, accumulated = 0;  // on any lane; what ends a reduction, beside the compute lane
  for (std::size_t i = 0; i < g.ops.size(); ++i) {
    const OpRole role = g.ops[i].role;
    const double seconds = t.spans[i].end - t.spans[i].start;
    if (role == OpRole::update || role == OpRole::norm_partial || role == OpRole::zero_grad) own += seconds;
    const bool computed = g.ops[i].lanes[0] % kLaneKinds == static_cast<int>(LaneKind::compute);
    if (role == OpRole::grad_accumulate) (computed ? own : accumulated) += seconds;
  }
  const TimeSplit split = breakdown(g, t).mean;
  EXPECT_GT(accumulated, 0);
  EXPECT_LE(at(split, TimeCategory::optimizer), own * (1 + 1e-9));
  EXPECT_GT(at(split, TimeCategory::exposed_dp), 0);
}

// The first gather of the next parameters waits for Adam on the host: that wait is offload, the gather itself exposed DP.
TEST(Breakdown, AWaitIsOfWhatWasNext) {
  const auto parts = [](const char* key, double host_s) {
    const auto g = lower_tiny(key, 8, 16, {}, false);
    std::vector<OpCost> prices = price(g, HashedCost{});
    for (std::size_t w = 0; w < g.works.size(); ++w)
      if (const auto* state = std::get_if<StateWork>(&g.works[w]); state && state->host)
        prices[w].duration = Seconds(host_s);
    return breakdown(g, simulate(g, prices)).mean;
  };
  const TimeSplit fast = parts("dp4.z1.mbs1.oo100", 1e-9), slow = parts("dp4.z1.mbs1.oo100", 1e3);
  EXPECT_GT(at(slow, TimeCategory::offload), 1e3);
  EXPECT_NEAR(at(slow, TimeCategory::exposed_dp), at(fast, TimeCategory::exposed_dp), 10);
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

// Whatever runs beside what, the memory drawn is at most what is reported, and that once.
TEST(Trace, DrawsThePeakThatIsReported) {
  for (const char* key : {"tp2.pp2.dp2.z1.mbs1", "dp8.z3.mbs1", "pp4.dp2.z2.mbs1.ao1"}) {
    auto g = lower_tiny(key);
    for (Buffer& b : g.buffers) b.bytes *= 4096;  // what is drawn has four decimals
    std::vector<OpCost> costs = price(g, HashedCost{});
    for (std::size_t w = 0; w < costs.size(); ++w)  // transfers lag behind what was issued after them
      if (!std::holds_alternative<BlockWork>(g.works[w])) costs[w].duration = costs[w].duration * 50.0;
    const auto trace = nlohmann::json::parse("[" + trace_events(g, simulate(g, costs)) + "]");
    std::map<int, double> peaks, before, on_host;
    for (const auto& event : trace) {
      if (event.at("ph") != "C") continue;
      double sum = 0;
      for (const auto& [kind, held] : event.at("args").items()) {
        EXPECT_EQ(kind == name(BufferKind::host), event.at("name") == "host_memory_GiB");
        sum += held.get<double>();
      }
      const bool host = event.at("name") == "host_memory_GiB";
      double& peak = (host ? on_host : peaks)[event.at("pid").get<int>()];
      peak = std::max(peak, sum);
      double& time = before[event.at("pid").get<int>()];
      EXPECT_GE(event.at("ts").get<double>(), time) << key;
      time = event.at("ts");
    }
    for (const auto& [stage, peak] : peaks)
      EXPECT_NEAR(peak, gib(walk(g, stage).peak.held.device()), 1e-3) << key << " stage " << stage;
    EXPECT_EQ(peaks.size(), static_cast<std::size_t>(g.plan.pp));
    EXPECT_EQ(on_host.size(), g.plan.activation_offload > 0 ? peaks.size() : 0);
    for (const auto& [stage, peak] : on_host)
      EXPECT_NEAR(peak, gib(walk(g, stage).host_peak), 1e-3) << key << " stage " << stage;
  }
}

// In nanoseconds, as a reader of the file adds them up.
TEST(Trace, SlicesOfALaneNeverOverlap) {
  const auto g = lower_tiny("tp2.pp2.dp2.z1.mbs1");
  auto timeline = simulate(g, price(g, HashedCost{}));
  for (Span& span : timeline.spans) {
    span.start *= 0.0123456789;
    span.end *= 0.0123456789;
  }
  const auto trace = nlohmann::json::parse("[" + trace_events(g, timeline) + "]");
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> lanes;
  for (const auto& event : trace) {
    if (event.at("ph") != "X") continue;
    const auto ns = [&](const char* key) { return std::llround(event.at(key).get<double>() * 1e3); };
    lanes[{event.at("pid"), event.at("tid")}].emplace_back(ns("ts"), ns("ts") + ns("dur"));
  }
  for (auto& [lane, slices] : lanes) {
    std::sort(slices.begin(), slices.end());
    for (std::size_t i = 1; i < slices.size(); ++i)
      EXPECT_GE(slices[i].first, slices[i - 1].second) << lane.first << "." << lane.second;
  }
}

TEST(Trace, PartsOfTheStepStandEndToEnd) {
  Timeline timeline;
  timeline.spans = {{0, 0.25}, {0.5, 1.5}};
  const std::array behind = {TracePart{"stragglers", 0}, TracePart{"host", 0.04}};
  const auto trace = nlohmann::json::parse("[" + trace_step(timeline, behind, 7) + "]");
  std::vector<std::string> names;
  double end = 0;
  for (const auto& event : trace) {
    EXPECT_EQ(event.at("pid"), 7);
    if (event.at("ph") != "X") continue;
    names.push_back(event.at("name"));
    EXPECT_DOUBLE_EQ(event.at("ts"), end);
    end += event.at("dur").get<double>();
  }
  EXPECT_EQ(names, (std::vector<std::string>{"operations", "host"}));
  EXPECT_DOUBLE_EQ(end, 1.54e6);
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
