// System: a whole run, every rank a thread, from a tiny model; and everything that may go wrong in one. Expectation: the loss
// falls, runs repeat to the bit, a failure is told in words that name it, on every rank and in time. A run that is done
// right stands beside each failure.
#include "runtime/training/training_run.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tests/runtime/trial.hpp"

namespace sextant::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The same batch in every step, which can be learnt by heart in a few; and gradients that can be spoilt.
struct Repeated : Trial {
  explicit Repeated(const std::string& key) : Repeated(key, [](Trial&) {}) {}
  template <class Change>
  Repeated(const std::string& key, Change change) : Trial(key, change) {
    run.sequences = [source = run.sequences](std::int64_t, int sequence, std::span<std::int32_t> tokens) {
      source(0, sequence, tokens);
    };
  }

  // The factor of the gradients by step. The source is called on the rank's own thread, before the step.
  void inject(const std::function<double(std::int64_t step)>& factor) {
    run.on_start = [](RankTrainer& trainer, int) { current_ = &trainer; };
    run.sequences = [source = run.sequences, factor](std::int64_t step, int sequence,
                                                     std::span<std::int32_t> tokens) {
      current_->gradient_factor = factor(step);
      source(step, sequence, tokens);
    };
  }

 private:
  static thread_local RankTrainer* current_;
};
thread_local RankTrainer* Repeated::current_ = nullptr;

bool tells(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

TEST(TrainingRun, LossFallsAndRunsRepeatToTheBit) {
  Repeated first("tp2.sp.pp2.mbs1.dp2.z1.b4K"), second("tp2.sp.pp2.mbs1.dp2.z1.b4K"),
      other("tp2.sp.pp2.mbs1.dp2.z1.b4K");
  other.run.weights = random_weights(other.model, 2);
  for (Trial* t : {&first, &second, &other}) ASSERT_EQ(t->go(20).error, "");
  ASSERT_EQ(first.steps.size(), 20U);
  EXPECT_NEAR(first.steps.front().loss, std::log(512), 0.3) << "of the uniform distribution at first";
  EXPECT_LT(first.steps.back().loss, first.steps.front().loss - 1);
  for (std::size_t s = 0; s < 20; ++s) {
    EXPECT_EQ(first.steps[s].loss, second.steps[s].loss) << "step " << s;
    EXPECT_EQ(first.steps[s].gradient_norm, second.steps[s].gradient_norm) << "step " << s;
    EXPECT_FALSE(first.steps[s].skipped);
  }
  EXPECT_EQ(first.state, second.state);
  EXPECT_NE(first.state, other.state) << "control: another start ends elsewhere";
}

TEST(TrainingRun, MemoryOfAStepIsOfTheRankThatHoldsMost) {
  Trial t("pp2.mbs4.dp2.z1.b4K");
  std::array<std::int64_t, 4> peaks{};  // each rank writes its own
  t.run.on_end = [&](RankTrainer& trainer, int rank) {
    peaks[static_cast<std::size_t>(rank)] = trainer.executor().memory().peak(Space::device);
  };
  ASSERT_EQ(t.go(3).error, "");
  const std::int64_t most = *std::ranges::max_element(peaks);
  EXPECT_EQ(t.steps.back().memory.v, most);
  EXPECT_LT(peaks[0], most) << "control: the last stage has the logits";
}

TEST(TrainingRun, GradientThatIsNotFiniteIsSkippedAndReported) {
  for (const char* key : {"dp2.z1.mbs1.b4K", "pp2.mbs1.zb", "dp2.z3.mbs1.po.oo60", "tp2.sp.mbs2"}) {
    const auto none = [](std::int64_t) { return 1.0; };
    const auto second = [](std::int64_t step) { return step == 1 ? kNaN : 1.0; };
    Repeated one(key), skipped(key), two(key);
    one.inject(none);
    skipped.inject(second);
    two.inject(none);
    ASSERT_EQ(one.go(1).error, "");
    ASSERT_EQ(skipped.go(2).error, "");
    ASSERT_EQ(two.go(2).error, "");
    EXPECT_EQ(skipped.state, one.state) << key << ": weights and moments are those of before";
    EXPECT_NE(two.state, one.state) << key << ": control: a good step changes them";
    ASSERT_EQ(skipped.steps.size(), 2U);
    EXPECT_FALSE(skipped.steps[0].skipped);
    EXPECT_TRUE(skipped.steps[1].skipped);
    EXPECT_TRUE(std::isnan(skipped.steps[1].gradient_norm)) << key;
    EXPECT_FALSE(std::signbit(skipped.steps[1].gradient_norm)) << key << ": printed as nan, not -nan";
    EXPECT_EQ(skipped.steps[1].loss, two.steps[1].loss) << key;
  }
}

TEST(TrainingRun, TrainingGoesOnAfterASkippedStep) {
  Repeated t("dp2.z1.mbs1.b4K");
  t.run.max_skipped = 3;  // two in a row are tolerated, more than once
  t.inject([](std::int64_t step) { return step % 3 == 0 ? 1.0 : kNaN; });
  ASSERT_EQ(t.go(20).error, "");
  EXPECT_TRUE(std::isfinite(t.steps.back().loss));
  EXPECT_LT(t.steps.back().loss, t.steps.front().loss);
}

TEST(TrainingRun, ManySkippedStepsInARowEndTheRun) {
  Repeated t("tp2.sp.mbs1.dp2.z1.b4K");
  t.run.max_skipped = 3;
  t.inject([](std::int64_t step) { return step < 2 ? 1.0 : kNaN; });
  t.go(20);
  EXPECT_FALSE(t.config_error);
  EXPECT_TRUE(tells(t.error, "step 4")) << t.error;
  EXPECT_TRUE(tells(t.error, "not finite 3 steps in a row")) << t.error;
  EXPECT_EQ(t.steps.size(), 5U);
}

TEST(TrainingRun, TokenBeyondTheVocabularyIsNamed) {
  for (const std::int32_t token : {511, 512, 70000}) {
    Repeated t("pp2.mbs1.dp2.z1");
    t.run.sequences = [&, source = t.run.sequences](std::int64_t step, int sequence,
                                                    std::span<std::int32_t> tokens) {
      source(step, sequence, tokens);
      if (step == 1 && sequence == 5) tokens[7] = token;
    };
    t.go(3);
    if (token == 511) {
      EXPECT_EQ(t.error, "") << "the last one of the vocabulary";
      continue;
    }
    EXPECT_TRUE(t.config_error);
    EXPECT_TRUE(tells(t.error, "step 1, sequence 5, position 7")) << t.error;
    EXPECT_TRUE(tells(t.error, "token " + std::to_string(token))) << t.error;
    EXPECT_TRUE(tells(t.error, "vocabulary of 512")) << t.error;
    EXPECT_EQ(t.steps.size(), 1U);
  }
}

TEST(TrainingRun, TooLittleMemoryOnOneStageEndsAllInTime) {
  const char* key = "pp2.mbs1.L1-3.dp2.z1";
  Repeated roomy(key);
  const auto estimate = estimate_memory(roomy.model, roomy.training, roomy.graph.plan, roomy.stack);
  // Between what the two stages need: the light one alone has enough, and would wait for the other.
  const std::int64_t light = estimate.stages[0].allocated().v, heavy = estimate.stages[1].allocated().v;
  ASSERT_GT(heavy, light + light / 5);
  roomy.run.device.device_memory = Bytes(heavy + heavy / 5);
  EXPECT_EQ(roomy.go(1).error, "");

  Repeated tight(key);
  tight.run.device.device_memory = Bytes((light + heavy) / 2);
  tight.go(1);
  EXPECT_TRUE(tells(tight.error, "device memory: ")) << tight.error;
  EXPECT_TRUE(tells(tight.error, "bytes asked")) << tight.error;
  EXPECT_TRUE(tight.steps.empty());
  EXPECT_LT(tight.seconds, 10);
}

TEST(TrainingRun, RefusesWhatItCannotRunWithKeyAndExpectation) {
  struct Refusal {
    const char* key;
    const char* expected;
    std::function<void(Trial&)> change;
    const char* plan = "dp2.z1.mbs1";
  };
  const Refusal refusals[] = {
      {"model.norm", "rms", [](Trial& t) { t.model.norm = NormKind::layer; }},
      {"model.position", "rope", [](Trial& t) { t.model.position = PositionKind::learned; }},
      {"model.gated_mlp", "true", [](Trial& t) { t.model.gated_mlp = false; }},
      {"training.compute", "fp64, fp32, bf16 or fp8", [](Trial& t) { t.training.compute = Dtype::fp16; }},
      {"training.parameter", "fp32", [](Trial& t) { t.training.parameter = Dtype::bf16; }},
      {"training.gradient", "fp32", [](Trial& t) { t.training.gradient = Dtype::bf16; }},
      {"training.optimizer_state", "fp32", [](Trial& t) { t.training.optimizer_state = Dtype::bf16; }},
      {"stack", "sextant",
       [](Trial& t) { t.stack = load_stack("megatron-core", SEXTANT_SOURCE_DIR "/tools/presets"); }},
      {"plan.tp", "at most 4", [](Trial&) {}, "tp8.sp.mbs1"},
  };
  for (const Refusal& r : refusals) {
    Repeated t(r.plan, r.change);
    t.go(1);
    EXPECT_TRUE(t.config_error) << r.key << ": " << t.error;
    EXPECT_TRUE(tells(t.error, r.key)) << t.error;
    EXPECT_TRUE(tells(t.error, r.expected)) << t.error;
    EXPECT_TRUE(t.steps.empty());
  }
}

// Rank 1 never comes back from reading its data, and the others wait for it outside of any operation.
TEST(TrainingRun, WatchdogEndsARunWhoseRankIsStuckBetweenSteps) {
  Repeated t("dp2.z1.mbs1");
  std::atomic<bool> ended{false};
  std::string report;
  t.run.expected.assign(t.graph.works.size(), Seconds(1e-3));
  t.run.deadline_floor = Seconds(0.5);
  t.run.on_late = [&](const std::string& text) {
    report = text;
    ended = true;  // a thread cannot be killed: it comes back once everyone has been told
  };
  const auto began = Clock::now();
  t.run.sequences = [&, source = t.run.sequences](std::int64_t step, int sequence,
                                                  std::span<std::int32_t> tokens) {
    source(step, sequence, tokens);
    while (step == 2 && sequence == 1 && !ended && Clock::now() - began < std::chrono::seconds(20))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  t.go(4);
  EXPECT_TRUE(report.starts_with("rank 1")) << report;
  EXPECT_TRUE(tells(report, "tokens of the step")) << report;
  EXPECT_TRUE(tells(t.error, "tokens of the step")) << t.error;
  EXPECT_EQ(t.steps.size(), 2U);
  EXPECT_LT(t.seconds, 10);
}

// Rank 1 never gets its state, and the others wait for it before the first step.
TEST(TrainingRun, WatchdogEndsARunWhoseRankIsStuckAtTheStart) {
  Repeated t("dp2.z1.mbs1");
  std::atomic<bool> ended{false};
  std::string report;
  t.run.expected.assign(t.graph.works.size(), Seconds(1e-6));
  t.run.deadline_floor = Seconds(0.05);
  t.run.on_late = [&](const std::string& text) {
    report = text;
    ended = true;
  };
  const auto began = Clock::now();
  t.run.on_start = [&](RankTrainer&, int rank) {
    while (rank == 1 && !ended && Clock::now() - began < std::chrono::seconds(20))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  t.go(4);
  EXPECT_TRUE(report.starts_with("rank 1 stalls the run (not there yet); rank 0: ")) << report;
  EXPECT_TRUE(tells(report, "at the start until all ranks")) << report;
  EXPECT_TRUE(t.steps.empty());
  EXPECT_LT(t.seconds, 10);
}

TEST(TrainingRun, WatchdogIsSilentOverAGoodRun) {
  Repeated t("pp2.mbs1.dp2.z1");
  bool late = false;
  t.run.expected.assign(t.graph.works.size(), Seconds(1e-3));
  t.run.deadline_floor = Seconds(30);
  t.run.on_late = [&](const std::string&) { late = true; };
  EXPECT_EQ(t.go(3).error, "");
  EXPECT_FALSE(late);
}

TEST(TrainingRun, MemoryPeakEqualsThePredictedOneToTheByte) {
  std::set<std::int64_t> distinct;
  for (const char* key : {"mbs8", "mbs1.full3", "dp2.z2.mbs1.b4K", "dp4.z3.mbs1", "tp2.sp.cp2.mbs1.dp2.z1",
                          "pp4.mbs2", "pp2.mbs1.zb.dp2.z2.b4K", "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1",
                          "dp2.z3.mbs1.po.oo60", "mbs1.ao2.hz3.full2"}) {
    Repeated t(key);
    const auto expected = estimate_memory(t.model, t.training, t.graph.plan, t.stack);
    std::mutex mutex;
    int ranks = 0;
    t.run.on_end = [&](RankTrainer& trainer, int rank) {
      const std::lock_guard lock(mutex);
      ++ranks;
      const StageMemory& stage = expected.stages[static_cast<std::size_t>(trainer.at().pp)];
      const MemoryLedger& held = trainer.executor().memory();
      for (int k = 0; k < kBufferKinds; ++k) {
        const auto kind = static_cast<BufferKind>(k);
        const auto predicted = stage.at_peak[static_cast<std::size_t>(k)];
        if (kind == BufferKind::host) continue;
        EXPECT_EQ(held.at_peak(Space::device)[kind], predicted) << key << ", rank " << rank << ", " << k;
      }
      EXPECT_EQ(held.peak(Space::device), stage.allocated().v) << key << ", rank " << rank;
      EXPECT_EQ(held.peak(Space::host), stage.host) << key << ", rank " << rank;
      distinct.insert(held.peak(Space::device));
    };
    EXPECT_EQ(t.go(2).error, "") << key;
    EXPECT_EQ(ranks, t.graph.plan.world());
  }
  EXPECT_GE(distinct.size(), 10U) << "control: the layouts do differ";
}

// Positions over a factor: under any layout the same, without a factor to the bit what it is without scaling.
TEST(TrainingRun, TrainsUnderLinearRopeScaling) {
  const auto losses = [](const char* key, const char* type, double factor) {
    Trial t(key, [&](Trial& trial) {
      trial.model.rope_scaling.reset();
      if (factor > 0) trial.model.rope_scaling = RopeScaling{.type = type, .factor = factor};
    });
    t.go(4);
    std::vector<double> all;
    for (const StepReport& r : t.steps) all.push_back(r.loss);
    return t.error.empty() ? all : std::vector<double>{};
  };
  const auto plain = losses("mbs8", "", 0), scaled = losses("mbs8", "linear", 4);
  ASSERT_EQ(plain.size(), 4U);
  ASSERT_EQ(scaled.size(), 4U);
  EXPECT_EQ(losses("mbs8", "linear", 1), plain);
  EXPECT_GT(std::abs(scaled.back() - plain.back()), 1e-6);
  const auto spread = losses("tp2.sp.cp2.mbs2", "linear", 4);
  ASSERT_EQ(spread.size(), 4U);
  for (std::size_t i = 0; i < spread.size(); ++i) EXPECT_NEAR(spread[i] / scaled[i], 1, 1e-5);
  EXPECT_EQ(losses("mbs8", "dynamic", 4), plain);  // within what the model is made for
  for (const char* type : {"longrope", "su", "mrope", "anything"})
    EXPECT_TRUE(losses("mbs8", type, 4).empty()) << type;
}

}  // namespace
}  // namespace sextant::testing
