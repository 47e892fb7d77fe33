// Unit: the sequential test of steps. Expectation: noise raises no alarm (at most one in 10,000 steps), of whatever tails; a change
// is seen within twenty steps, where it is and how large; what all ranks share is no drift of one.
#include "planner/adaptation/drift.hpp"

#include <cmath>
#include <functional>
#include <random>

#include <gtest/gtest.h>

namespace sextant {
namespace {

ExpectedStep sound(int ranks, int nodes, int stages = 1) {
  ExpectedStep e;
  e.compute.assign(static_cast<std::size_t>(ranks), 1.0);
  e.network.assign(static_cast<std::size_t>(nodes), 1.0);
  for (int r = 0; r < ranks; ++r) e.stage.push_back(r * stages / ranks);
  return e;
}

// A machine that varies: each rank by itself, all together, and now and then a step that takes half as long again.
class NoisyMachine {
 public:
  NoisyMachine(int ranks, int nodes, double sigma, unsigned seed)
      : ranks_(static_cast<std::size_t>(ranks)),
        nodes_(static_cast<std::size_t>(nodes)),
        sigma_(sigma),
        random_(seed) {}
  StepObservation step() {
    StepObservation s;
    s.step = step_++;
    const double all = noise();
    for (std::size_t r = 0; r < ranks_; ++r) s.compute.push_back(all * noise() * hiccup());
    for (std::size_t n = 0; n < nodes_; ++n) s.network.push_back(noise() * hiccup());
    s.duration = Seconds(1);
    return s;
  }

 private:
  double noise() { return std::exp(sigma_ * normal_(random_)); }
  double hiccup() { return uniform_(random_) < 0.01 ? 1.5 : 1; }
  std::size_t ranks_, nodes_;
  double sigma_;
  std::int64_t step_ = 0;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
  std::uniform_real_distribution<double> uniform_;
};

TEST(DriftWatch, NoiseRaisesNoMoreAlarmsThanStated) {
  constexpr int kSteps = 100'000;
  for (const double sigma : {0.002, 0.02, 0.1}) {
    int alarms = 0;
    NoisyMachine machine(8, 2, sigma, 7);
    DriftWatch watch(sound(8, 2));
    for (int s = 0; s < kSteps; ++s) alarms += watch.observe(machine.step()).has_value();
    EXPECT_LE(alarms, 10) << "spread " << sigma;
    RecordProperty("false_alarms_in_100000_of_spread_" + std::to_string(sigma), alarms);
  }
}

// Runs 100 undisturbed steps, then `change` acts on every one. The alarm, or nothing within `most` steps.
std::optional<Drift> after(DriftWatch& watch, NoisyMachine& machine,
                           const std::function<void(StepObservation&)>& change, int most = 20) {
  for (int s = 0; s < 100; ++s)
    if (watch.observe(machine.step())) ADD_FAILURE() << "a false alarm in step " << s;
  for (int s = 0; s < most; ++s) {
    StepObservation step = machine.step();
    change(step);
    if (auto drift = watch.observe(step)) return drift;
  }
  return std::nullopt;
}

TEST(DriftWatch, AStragglerIsFoundWithItsSize) {
  for (const double times : {1.3, 2.0, 4.0}) {
    NoisyMachine machine(8, 2, 0.02, 3);
    DriftWatch watch(sound(8, 2));
    const auto drift = after(watch, machine, [&](StepObservation& s) { s.compute[3] *= times; });
    ASSERT_TRUE(drift) << times;
    ASSERT_EQ(drift->ranks.size(), 1U);
    EXPECT_EQ(drift->ranks[0].index, 3);
    EXPECT_NEAR(drift->ranks[0].times, times, 0.05 * times);
    EXPECT_TRUE(drift->nodes.empty());
    EXPECT_EQ(drift->everything, 1);
    EXPECT_NEAR(static_cast<double>(drift->onset), 100, 1);
    // It has been told; the machine is as it is now.
    for (int s = 0; s < 1000; ++s) {
      StepObservation step = machine.step();
      step.compute[3] *= times;
      EXPECT_FALSE(watch.observe(step)) << "told twice";
    }
    const auto sound_again = watch.observe(machine.step());
    EXPECT_FALSE(sound_again);
  }
}

TEST(DriftWatch, WhatRecoversIsToldAsWell) {
  NoisyMachine machine(8, 2, 0.02, 3);
  ExpectedStep expected = sound(8, 2);
  expected.compute[3] = 2;  // known to be slow
  DriftWatch watch(expected);
  for (int s = 0; s < 100; ++s) {
    StepObservation step = machine.step();
    step.compute[3] *= 2;
    ASSERT_FALSE(watch.observe(step));
  }
  std::optional<Drift> drift;
  for (int s = 0; s < 20 && !drift; ++s) drift = watch.observe(machine.step());
  ASSERT_TRUE(drift);
  ASSERT_EQ(drift->ranks.size(), 1U);
  EXPECT_NEAR(drift->ranks[0].times, 0.5, 0.03);
}

TEST(DriftWatch, ASlowNetworkIsOfItsNode) {
  NoisyMachine machine(8, 4, 0.02, 5);
  DriftWatch watch(sound(8, 4));
  const auto drift = after(watch, machine, [](StepObservation& s) { s.network[2] *= 4; });
  ASSERT_TRUE(drift);
  EXPECT_TRUE(drift->ranks.empty());
  ASSERT_EQ(drift->nodes.size(), 1U);
  EXPECT_EQ(drift->nodes[0].index, 2);
  EXPECT_NEAR(drift->nodes[0].times, 4, 0.2);
}

TEST(DriftWatch, WhatAllShareIsEverything) {
  NoisyMachine machine(8, 1, 0.02, 5);
  DriftWatch watch(sound(8, 1));
  const auto drift = after(watch, machine, [](StepObservation& s) {
    for (double& c : s.compute) c *= 1.5;
  });
  ASSERT_TRUE(drift);
  EXPECT_TRUE(drift->ranks.empty());
  EXPECT_NEAR(drift->everything, 1.5, 0.05);
}

TEST(DriftWatch, LessThanTheLeastEffectIsNone) {
  NoisyMachine machine(8, 1, 0.001, 5);
  DriftWatch watch(sound(8, 1));
  EXPECT_FALSE(after(
      watch, machine, [](StepObservation& s) { s.compute[3] *= 1.02; }, 2000));
}

TEST(DriftWatch, WhatTheModelIsOffIsLearntButNoRankThatIsSlowFromTheBeginning) {
  // Stage 1 takes 1.6 times what the model says, and rank 6 of it twice that.
  NoisyMachine machine(8, 1, 0.02, 9);
  DriftWatch watch(sound(8, 1, 2));
  std::optional<Drift> drift;
  for (int s = 0; s < 30 && !drift; ++s) {
    StepObservation step = machine.step();
    for (std::size_t r = 4; r < 8; ++r) step.compute[r] *= 1.6;
    step.compute[6] *= 2;
    drift = watch.observe(step);
  }
  ASSERT_TRUE(drift);
  ASSERT_EQ(drift->ranks.size(), 1U);
  EXPECT_EQ(drift->ranks[0].index, 6);
  EXPECT_NEAR(drift->ranks[0].times, 2, 0.1);
}

TEST(DriftWatch, OneHiccupDecidesNothing) {
  NoisyMachine machine(8, 1, 0.01, 1);
  DriftWatch watch(sound(8, 1));
  for (int s = 0; s < 200; ++s) {
    StepObservation step = machine.step();
    if (s % 50 == 49) step.compute[1] *= 1000;
    EXPECT_FALSE(watch.observe(step)) << s;
  }
}

}  // namespace
}  // namespace sextant
