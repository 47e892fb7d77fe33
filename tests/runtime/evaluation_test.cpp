// Held-out loss: it is what a training step at the same weights would report, on every kind of layout; and a run that is
// looked at goes on to the same bits as one that is not.
#include <algorithm>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/lower.hpp"
#include "runtime/training_run.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

constexpr int kBatch = 8;

// A run of a tiny model, and what came of it.
struct Watched {
  ModelSpec model = tiny_model(4);
  TrainingSpec training = tiny_training(kBatch);
  StackSpec stack = load_stack("sextant", SEXTANT_SOURCE_DIR "/tools/presets");
  ExecutionGraph graph;
  TrainingRun run{.graph = graph, .stack = stack, .kernels = cpu_reference_kernels()};
  std::vector<double> losses, gradient_norms, held_out;
  std::vector<std::int64_t> evaluated;
  std::map<std::pair<int, StateField>, std::vector<double>> state;

  Watched(const std::string& key, std::int64_t steps, std::int64_t every) {
    training.compute = training.parameter = training.gradient = Dtype::fp32;
    training.reduction = training.optimizer_state = Dtype::fp32;
    training.stack = "sextant";
    const ParallelPlan plan = parse_plan_key(key);
    graph = lower(model, training, flat_links(plan), plan, stack);
    run.steps = steps;
    run.optimizer.rate = 1e-2;
    run.sequences = synthetic_sequences(model.vocab_size, kBatch, 1);
    run.weights = random_weights(model, 1);
    run.evaluate_every = every;
    run.on_step = [this](const StepReport& r, const RankTrainer&) {
      losses.push_back(r.loss), gradient_norms.push_back(r.gradient_norm);
    };
    run.on_evaluation = [this](std::int64_t step, const std::vector<double>& l, Seconds took) {
      EXPECT_GT(took.v, 0);
      evaluated.push_back(step);
      held_out.insert(held_out.end(), l.begin(), l.end());
    };
    run.on_end = [this](RankTrainer& trainer, int rank) {
      const std::lock_guard lock(mutex_);
      for (const StateField field : {StateField::master, StateField::moment1, StateField::moment2})
        trainer.state().read_owned(field, [&](const OwnedPiece&, std::span<const double> values) {
          auto& all = state[{rank, field}];
          all.insert(all.end(), values.begin(), values.end());
        });
    };
  }
  Watched(const Watched&) = delete;

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
    train(run);
    return *this;
  }

 private:
  std::mutex mutex_;
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

TEST(Evaluation, WithoutATargetIsRefused) {
  Watched w("dp2.mbs1", 1, 1);
  w.run.evaluations = {
      {"empty", [](std::int64_t, int, std::span<std::int32_t> t) { std::ranges::fill(t, ~0); }, 1}};
  EXPECT_THROW(w.go(), ConfigError);
}

}  // namespace
}  // namespace sextant::testing
