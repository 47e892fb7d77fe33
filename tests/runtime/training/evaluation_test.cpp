// Held-out loss: it is what a training step at the same weights would report, on every kind of layout; and a run that is
// looked at goes on to the same bits as one that is not.
#include <algorithm>
#include <atomic>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/lowering/lower.hpp"
#include "runtime/training/training_run.hpp"
#include "tests/runtime/trial.hpp"

namespace sextant::testing {
namespace {

// Looks at what is held out every so many steps.
struct Watched : Trial {
  std::int64_t n;
  std::vector<double> losses, gradient_norms, held_out;
  std::vector<std::int64_t> evaluated;

  Watched(const std::string& key, std::int64_t steps_asked, std::int64_t every) : Trial(key), n(steps_asked) {
    run.evaluate_every = every;
    run.on_evaluation = [this](std::int64_t step, const std::vector<double>& l, Seconds took) {
      EXPECT_GT(took.v, 0);
      evaluated.push_back(step);
      held_out.insert(held_out.end(), l.begin(), l.end());
    };
  }

  // Evaluates over the batches of training from step `first` on.
  Watched& look_at(std::int64_t first, std::int64_t batches) {
    const SequenceSource shifted = [source = run.sequences, first](std::int64_t step, int sequence,
                                                                   std::span<std::int32_t> tokens) {
      source(first + step, sequence, tokens);
    };
    run.evaluations.push_back({"held out", shifted, batches});
    return *this;
  }
  Watched& go() {
    Trial::go(n);
    EXPECT_EQ(error, "");
    for (const StepReport& r : steps) {
      losses.push_back(r.loss);
      gradient_norms.push_back(r.gradient_norm);
    }
    return *this;
  }
};

class Evaluations : public ::testing::TestWithParam<const char*> {};

TEST_P(Evaluations, DoNotDisturbTraining) {
  Watched plain(GetParam(), 5, 0), watched(GetParam(), 5, 2);
  plain.go();
  watched.look_at(100, 2).look_at(200, 1).go();
  EXPECT_TRUE(plain.evaluated.empty());
  EXPECT_EQ(watched.evaluated, (std::vector<std::int64_t>{1, 3, 4}))
      << "every second step, and behind the last";
  EXPECT_EQ(watched.held_out.size(), 6U);
  EXPECT_EQ(plain.losses, watched.losses);
  EXPECT_EQ(plain.gradient_norms, watched.gradient_norms);
  EXPECT_EQ(plain.state, watched.state);
}

TEST_P(Evaluations, SeeTheLossOfTheNextStep) {
  Watched w(GetParam(), 2, 1);
  w.look_at(1, 1).go();
  EXPECT_EQ(w.held_out[0], w.losses[1]) << "to the bit: it is the same forward pass";
  EXPECT_NE(w.held_out[1], w.losses[1]) << "control: an update later";
}

INSTANTIATE_TEST_SUITE_P(Layouts, Evaluations,
                         ::testing::Values("dp1.mbs1", "tp2.sp.mbs2", "tp2.pp2.mbs1.sel", "pp2.vp2.mbs1",
                                           "pp2.mbs1.zb", "cp2.mbs2.full", "dp2.z1.mbs1.b4K",
                                           "dp2.z2.mbs1.b4K", "dp2.z3.mbs1.b4K", "dp2.z3.mbs1.po.oo60",
                                           "dp2.z1.mbs1.oo50", "mbs2.ao2", "tp2.sp.pp2.mbs1.dp2.z1.b4K"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(Evaluation, IsAMeanOverTargets) {
  Watched one("dp2.mbs1", 1, 1), both("dp2.mbs1", 1, 1);
  one.look_at(1, 1).look_at(2, 1).go();
  both.look_at(1, 2).go();
  EXPECT_NEAR(both.held_out[0], (one.held_out[0] + one.held_out[1]) / 2, 1e-12);
}

// A look at much text may take longer than a scheduler waits.
TEST(Evaluation, IsGivenUpWhenTheRunIsToEnd) {
  constexpr std::int64_t kMany = 1000;
  for (const char* key : {"dp2.mbs1", "tp2.pp2.mbs1.sel"})
    for (const bool by_signal : {true, false}) {
      std::atomic<bool> stop = false, late = false;
      std::atomic<std::int64_t> furthest = 0;
      Watched w(key, 4, 2), plain(key, 2, 0);
      const SequenceSource source = w.run.sequences;
      w.run.evaluations = {{"held out",
                            [&](std::int64_t batch, int sequence, std::span<std::int32_t> tokens) {
                              if (batch >= 3) (by_signal ? stop : late) = true;
                              if (batch > furthest) furthest = batch;
                              source(batch, sequence, tokens);
                            },
                            kMany}};
      w.run.stop = &stop;
      w.run.time_to_stop = [&] { return late.load(); };
      w.go();
      plain.go();
      EXPECT_LE(furthest, 4) << key;
      EXPECT_TRUE(w.evaluated.empty()) << key;
      EXPECT_EQ(w.losses, plain.losses) << key;
      EXPECT_EQ(w.state, plain.state) << key << ": the state behind the last step";
    }
}

TEST(Evaluation, WithoutATargetIsRefused) {
  Watched w("dp2.mbs1", 1, 1);
  w.run.evaluations = {
      {"empty", [](std::int64_t, int, std::span<std::int32_t> t) { std::ranges::fill(t, ~0); }, 1}};
  EXPECT_TRUE(w.Trial::go(1).config_error);
}

}  // namespace
}  // namespace sextant::testing
