// Calibration against itself: runs that were made with a moved constant must move it back, and only it.
#include "planner/calibrate.hpp"

#include <gtest/gtest.h>

#include "planner/validate.hpp"
#include "tests/support/measured.hpp"
#include "planner/calibrate_memory.hpp"

namespace sextant {
namespace {

RunRow run_of(int hidden, int micro_batch, int tp) {
  RunRow r;
  r.run_id = "twin", r.source = "twin", r.framework = "Megatron-LM", r.date = "2024";
  r.model.n_layers = 8, r.model.hidden = hidden, r.model.n_heads = r.model.n_kv_heads = hidden / 128;
  r.model.head_dim = 128, r.model.ffn_hidden = 3 * hidden, r.model.vocab_size = 32000;
  r.training.seq_len = 4096, r.training.global_batch = 64;
  r.plan.micro_batch = micro_batch, r.plan.tp = tp, r.plan.dp = 8 / tp;
  r.plan.zero_stage = 1;
  r.gpu = "H100-SXM5-80GB", r.fabric = "NVLink4 NVSwitch", r.gpus_per_node = 8;
  return r;
}

std::vector<RunRow> runs() {
  return {run_of(2048, 1, 1), run_of(4096, 1, 1), run_of(4096, 2, 1), run_of(8192, 1, 2),
          run_of(8192, 1, 4), run_of(4096, 4, 2), run_of(2048, 8, 1)};
}

class Calibrate : public testing::Test {
 protected:
  const std::filesystem::path presets_ = test::preset_dir();
  const FrameworkMap map_ = load_framework_map(presets_);
  const CalibrationRules rules_ = load_calibration_rules(presets_);

  // Measured = predicted with `of.key` moved by `factor`.
  std::vector<RunRow> measured(const std::vector<Knob>& knobs, const std::string& key, double factor) const {
    Calibration truth;
    for (const Knob& k : knobs) truth.constants.push_back({k, k.prior * (k.key == key ? factor : 1.0), 0.0});
    std::vector<RunRow> rows = runs();
    const auto predictions = predict_calibrated(rows, map_, presets_, truth);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].step_time = Seconds(predictions[i].step_s.value());
    return rows;
  }
  std::vector<Knob> knobs() const {
    std::vector<RunRow> rows = runs();
    for (RunRow& r : rows) r.step_time = Seconds(1);
    return knobs_of(rows, map_, presets_, rules_);
  }
  static const KnobFit& fit_of(const Calibration& c, const std::string& key) {
    for (const KnobFit& f : c.constants)
      if (f.knob.key == key) return f;
    throw std::runtime_error(key);
  }
};

TEST_F(Calibrate, MovesTheConstantThatMoved) {
  const auto k = knobs();
  const auto rows = measured(k, "gemm_efficiency", 0.92);
  const Calibration c = calibrate(rows, map_, presets_, rules_, k);
  EXPECT_EQ(c.rows, 7);
  EXPECT_GT(c.mape_before, 3.0);
  EXPECT_LT(c.mape_after, 1.0);
  const KnobFit& gemm = fit_of(c, "gemm_efficiency");
  EXPECT_LT(gemm.value,
            gemm.knob.prior);  // the stack's bonus and the common factor take their share of the blame
  // The calibrated prediction of a run it has not seen is closer than the presets' one.
  std::vector<RunRow> next = {run_of(6144, 2, 2)};
  Calibration truth;
  for (const Knob& knob : k)
    truth.constants.push_back({knob, knob.prior * (knob.key == "gemm_efficiency" ? 0.92 : 1.0), 0.0});
  const double real = *predict_calibrated(next, map_, presets_, truth)[0].step_s;
  const double calibrated = *predict_calibrated(next, map_, presets_, c)[0].step_s;
  const double before = *predict_run(next[0], map_, {presets_, nullptr, {}}).step_s;
  EXPECT_LT(std::abs(calibrated / real - 1), 0.01);
  EXPECT_GT(std::abs(before / real - 1), 0.03);
}

TEST_F(Calibrate, LeavesWhatTheRowsCannotTell) {
  const auto k = knobs();
  const Calibration c = calibrate(measured(k, "gemm_efficiency", 0.92), map_, presets_, rules_, k);
  // No run has an unfused norm, and none leaves the node: neither constant may move or claim to be known.
  const KnobFit& norm = fit_of(c, "pointwise_unfused_norm_passes");
  EXPECT_DOUBLE_EQ(norm.value, norm.knob.prior);
  EXPECT_FALSE(norm.identified());
  for (const KnobFit& f : c.constants) EXPECT_NE(f.knob.of, KnobOf::fabric);
}

// Negative control of both: runs as predicted move nothing.
TEST_F(Calibrate, RunsAsPredictedMoveNothing) {
  const auto k = knobs();
  const Calibration c = calibrate(measured(k, "gemm_efficiency", 1.0), map_, presets_, rules_, k);
  EXPECT_LT(c.mape_after, 1e-6);
  EXPECT_NEAR(c.common, 1, 1e-9);
  for (const KnobFit& f : c.constants) EXPECT_NEAR(f.value / f.knob.prior, 1, 1e-9) << f.knob.key;
}

TEST_F(Calibrate, RefusesAnUnknownConstant) {
  std::vector<RunRow> rows = runs();
  for (RunRow& r : rows) r.step_time = Seconds(1);
  const std::vector<Knob> wrong = {{KnobOf::stack, "megatron-lm-2024", "pointwise", 1, 0.1, 0, 0}};
  Calibration c;
  c.constants = {{wrong[0], 1, 0.1}};
  EXPECT_FALSE(predict_calibrated(rows, map_, presets_, c)[0].step_s.has_value());
}

// A stack whose peaks were made with more saved FFN copies than its preset says gets them back.
TEST_F(Calibrate, MemoryFindsTheCoefficientThatMoved) {
  std::vector<RunRow> rows = runs();
  MemoryPlan plan{
      {"megatron-lm-2024"}, {"twin"}, {{"saved_ffn", 0, 2.0, 1, 8}, {"attention_scores", 4.3, 1, 0, 9}}};
  double preset = 0;
  for (RunRow& r : rows) {
    ResolvedRun run = resolve(r, map_, presets_);
    preset = plan.constants[0].prior = run.stack.memory.saved_ffn;
    run.stack.memory.saved_ffn += 1.5;
    const MemoryEstimate e = estimate_memory(run.model, run.training, run.plan, run.stack);
    r.memory_kind = "torch_peak";
    r.peak_memory_GiB = gib(e.allocated());
  }
  const MemoryFit fit = calibrate_memory(rows, map_, presets_, plan);
  EXPECT_EQ(fit.peaks, 7);
  EXPECT_LT(fit.after, 0.5 * fit.before);
  EXPECT_NEAR(fit.constants[0].value, preset + 1.5, 0.15);
  EXPECT_NEAR(fit.constants[1].value, 4.3, 0.2);  // no score is kept by these kernels
  EXPECT_THROW(memory_constant(StackMemory{}, "saved_fnn"), ConfigError);
}

}  // namespace
}  // namespace sextant
