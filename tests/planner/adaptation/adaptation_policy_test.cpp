// Unit: when a run changes its layout. Expectation: for a gain that pays, and not otherwise; back, when what was promised is not
// held; never onto ranks that are gone. The layouts and their steps are made up here.
#include "planner/adaptation/adaptation_policy.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "planner/adaptation/start_trial.hpp"

namespace sextant {
namespace {

// Two layouts: "wide" waits for its slowest rank; "uneven" gives a slow rank less, and takes `uneven` of the sound step.
struct Made {
  ClusterSpec given = load_cluster("1x8xh100", SEXTANT_SOURCE_DIR "/tools/presets");
  Layout wide{parse_plan_key("dp8"), {}}, uneven{parse_plan_key("pp4.dp2"), {}};
  Seconds move{2};
  double off = 1;  // what `uneven` really takes of what is predicted
  bool nothing = false;

  static double slowest(const ClusterSpec& c) {
    double times = 1;
    for (const Defect& d : c.defects) times = std::max(times, 1 / d.compute_factor);
    return times;
  }
  Seconds step(const Layout& l, const ClusterSpec& c) const {
    return Seconds(l.plan.pp == 1 ? slowest(c) : slowest(c) > 1 ? 1.25 : 1.1);
  }
  AdaptationTools tools() {
    return {.plans =
                [this](const ClusterSpec& c, const std::atomic<bool>&) {
                  std::vector<Forecast> found;
                  if (nothing) return found;
                  if (c.gpus() < 8)
                    return std::vector<Forecast>{{Layout{parse_plan_key("dp4"), {}}, Seconds(2)}};
                  found = {{wide, step(wide, c)}, {uneven, step(uneven, c)}};
                  std::ranges::stable_sort(found, {}, [](const Forecast& f) { return f.step.v; });
                  return found;
                },
            .step = [this](const Layout& l, const ClusterSpec& c) { return step(l, c); },
            .move = [this](const Layout&, const ClusterSpec&) { return move; }};
  }
};

AdaptationOptions at_once() {
  AdaptationOptions o;
  o.waits = true;
  return o;
}

// A run on the made-up machine: rank 3 takes `times` from step `from` on.
class MadeRun {
 public:
  MadeRun(Made& made, std::int64_t steps)
      : made_(made), steps_(steps), policy(made.given, made.wide, made.tools(), at_once()) {}

  std::vector<Decision> go(std::int64_t until, double times) {
    std::vector<Decision> decisions;
    for (; step_ < until; ++step_) {
      StepObservation s{.step = step_, .duration = {}, .compute = {}, .network = {1}};
      const Layout& now = policy.layout();
      ClusterSpec sick = made_.given;
      Defect d;
      d.node = 0;
      d.gpu = 3;
      d.compute_factor = 1 / times;
      sick.defects.push_back(d);
      s.duration = made_.step(now, sick) * (now == made_.uneven ? made_.off : 1.0);
      for (int r = 0; r < now.plan.world(); ++r) s.compute.push_back(r == 3 ? times : 1.0);
      if (const auto decision = policy.observe(s, steps_ - step_ - 1)) {
        decisions.push_back(*decision);
        if (decision->changes()) policy.changed(Seconds(2.5));
      }
    }
    return decisions;
  }

 private:
  Made& made_;
  std::int64_t steps_, step_ = 0;

 public:
  AdaptationPolicy policy;
};

TEST(AdaptationPolicy, ChangesForAStragglerAndBackWhenItRecovers) {
  Made made;
  MadeRun run(made, 10'000);
  EXPECT_TRUE(run.go(100, 1).empty());
  const auto sick = run.go(200, 2);
  ASSERT_EQ(sick.size(), 2U);
  EXPECT_EQ(sick[0].kind, DecisionKind::change);
  EXPECT_LE(sick[0].step, 120);
  EXPECT_EQ(sick[0].to, made.uneven);
  EXPECT_NEAR(sick[0].now.v, 2, 1e-9);
  EXPECT_NEAR(sick[0].then.v, 1.25, 1e-9);
  EXPECT_EQ(sick[1].kind, DecisionKind::keep);
  const auto sound = run.go(300, 1);
  ASSERT_EQ(sound.size(), 2U);
  EXPECT_EQ(sound[0].kind, DecisionKind::change);
  EXPECT_EQ(sound[0].to, made.wide);
  EXPECT_EQ(run.policy.belief().cluster(), made.given) << "nothing is believed to be slow any more";
}

// A busy start says nothing of what other layouts take now.
TEST(AdaptationPolicy, StepsBeforeADriftDoNotSpeakAgainstOtherLayouts) {
  Made made;
  MadeRun run(made, 1000);
  run.policy.measured(made.wide, Seconds(3.3));
  EXPECT_TRUE(run.go(60, 1).empty());
  const auto decisions = run.go(100, 2);
  ASSERT_FALSE(decisions.empty());
  EXPECT_EQ(decisions.front().kind, DecisionKind::change) << decisions.front().why;
  EXPECT_NEAR(decisions.front().now.v, 2, 0.05);
  EXPECT_NEAR(decisions.front().then.v, 1.25, 0.05);
}

TEST(AdaptationPolicy, StaysWhenAChangeDoesNotPay) {
  Made made;
  made.move = Seconds(1e6);
  MadeRun dear(made, 10'000);
  dear.go(100, 1);
  const auto decisions = dear.go(200, 2);
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].kind, DecisionKind::stay);
  EXPECT_EQ(dear.policy.layout(), made.wide);

  made.move = Seconds(2);
  MadeRun short_run(made, 107);  // two steps are left when it is seen
  short_run.go(100, 1);
  for (const Decision& d : short_run.go(107, 2)) EXPECT_EQ(d.kind, DecisionKind::stay);
  MadeRun slight(made, 10'000);  // 1.3 against 1.25 (1 + uncertainty)
  slight.go(100, 1);
  for (const Decision& d : slight.go(200, 1.3)) EXPECT_EQ(d.kind, DecisionKind::stay);
}

TEST(AdaptationPolicy, GoesBackWhenAPromiseIsNotHeldAndKnowsBetterNextTime) {
  Made made;
  made.off = 1.4;  // 1.75 s in place of 1.25: a third of the gain
  MadeRun run(made, 10'000);
  run.go(100, 1);
  const auto decisions = run.go(300, 2);
  ASSERT_EQ(decisions.size(), 3U);
  EXPECT_EQ(decisions[0].kind, DecisionKind::change);
  EXPECT_EQ(decisions[1].kind, DecisionKind::go_back);
  EXPECT_EQ(decisions[1].to, made.wide);
  EXPECT_EQ(decisions[2].kind, DecisionKind::keep);
  const auto worse = run.go(400, 2.2);
  ASSERT_FALSE(worse.empty());
  for (const Forecast& f : worse[0].alternatives)
    if (f.layout == made.uneven) {
      EXPECT_NEAR(f.step.v, 1.75, 0.01) << "what was measured, not what was predicted";
    }
}

TEST(AdaptationPolicy, LostRanksAreLeftAtOnceAndUsedAgainWhenTheyAreBack) {
  Made made;
  MadeRun run(made, 10'000);
  run.go(50, 1);
  const Decision lost = run.policy.lose({{0, 5}}, 49, 9950);
  EXPECT_EQ(lost.kind, DecisionKind::lost);
  EXPECT_EQ(lost.to.plan.world(), 4);
  run.policy.changed(Seconds(3));
  EXPECT_EQ(run.policy.belief().cluster().gpus(), 7);
  run.policy.find({{0, 5}}, 60);
  EXPECT_EQ(run.policy.belief().cluster().gpus(), 8);

  made.nothing = true;
  MadeRun none(made, 10'000);
  EXPECT_EQ(none.policy.lose({{0, 5}}, 0, 10).kind, DecisionKind::no_layout);
}

// A search that ends when it is abandoned, and not before ten seconds otherwise.
TEST(AdaptationPolicy, DoesNotWaitForASearchThatNobodyWantsAnyMore) {
  Made made;
  AdaptationTools tools = made.tools();
  std::atomic<int> abandoned = 0, begun = 0;
  tools.plans = [&, plain = tools.plans](const ClusterSpec& c, const std::atomic<bool>& unwanted) {
    if (c.gpus() < 8 || begun++ > 0) return plain(c, unwanted);
    for (int ms = 0; ms < 10'000 && !unwanted; ++ms)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    abandoned += unwanted;
    return plain(c, unwanted);
  };
  const auto begin = std::chrono::steady_clock::now();
  {
    AdaptationPolicy policy(made.given, made.wide, tools, {});
    policy.find({{0, 1}}, 10);  // another GPU is a reason to search
    ASSERT_TRUE(policy.searching());
    while (begun == 0) std::this_thread::yield();
    EXPECT_EQ(policy.lose({{0, 5}}, 20, 9950).to.plan.world(), 4);
    EXPECT_EQ(abandoned, 1);
    policy.changed(Seconds(3));

    begun = 0;
    policy.find({{0, 5}}, 60);
    while (begun == 0) std::this_thread::yield();
  }  // the run ends
  EXPECT_EQ(abandoned, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(StartTrial, TriesWhatTheBudgetPaysForAndKeepsTheBestMeasured) {
  const Layout a{parse_plan_key("dp8"), {}}, b{parse_plan_key("tp2.dp4"), {}}, c{parse_plan_key("pp8"), {}};
  const std::vector<Forecast> layouts = {{a, Seconds(1)}, {c, Seconds(3)}, {b, Seconds(1.1)}};
  StartTrial trial(layouts, 1000, {.share = 0.02, .steps_each = 3, .pause = Seconds(0.5)});
  EXPECT_NEAR(trial.budget().v, 20, 1e-9);
  for (int s = 0; s < 3; ++s) trial.took(Seconds(1.2));
  ASSERT_TRUE(trial.present_done());
  ASSERT_EQ(trial.next(), b);
  trial.go_on();
  trial.paused(Seconds(1));
  EXPECT_FALSE(trial.present_done());
  trial.took(Seconds(9));  // the first connects
  for (int s = 0; s < 2; ++s) trial.took(Seconds(0.9));
  ASSERT_EQ(trial.results().size(), 2U);
  EXPECT_EQ(trial.results()[0].layout.layout, b);
  EXPECT_NEAR(trial.results()[0].measured.v, 0.9, 1e-9);
  EXPECT_NEAR(trial.spent().v, 1 + 3 * 0.3 + 8.1, 1e-9);
  EXPECT_FALSE(trial.next()) << "c would cost 3 (3.6 - 0.9) s more";
  EXPECT_EQ(trial.left_out(), 1U);

  StartTrial poor(layouts, 20, {.share = 0.02, .steps_each = 3, .pause = Seconds(0.5)});
  EXPECT_FALSE(poor.next());
}

}  // namespace
}  // namespace sextant
