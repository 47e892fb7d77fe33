// Calibration against itself: runs that were made with a moved constant must move it back, and only it.
#include "planner/calibration/calibrate.hpp"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

#include "planner/calibration/calibrate_memory.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/calibration/fit_problem.hpp"
#include "planner/validation/validate.hpp"
#include "tests/planner/calibration/small_row.hpp"
#include "tests/support/measured.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

RunRow run_of(int hidden, int micro_batch, int tp) {
  RunRow r = small_row(hidden, micro_batch, tp);
  r.run_id = r.source = "twin";
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

  // Measured = predicted with the constant of this key moved by `factor`.
  std::vector<MeasuredRun> measured(const std::string& key, double factor) const {
    std::vector<RunRow> rows = runs();
    const auto truth = predict_runs(rows, map_, moved(key, factor).options());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].step_time = Seconds(truth[i].step_s.value());
    return measured_runs(rows, map_, presets_);
  }
  CalibratedPresets moved(const std::string& key, double factor) const {
    std::vector<Setting> settings;
    for (const FreeConstant& k : calibrated())
      if (k.key == key) settings.push_back({k.of, k.owner, k.key, k.prior * factor});
    return {presets_, settings};
  }
  std::vector<FreeConstant> calibrated() const {
    std::vector<RunRow> rows = runs();
    for (RunRow& r : rows) r.step_time = Seconds(1);
    return constants_of(measured_runs(rows, map_, presets_), presets_, rules_);
  }
  Calibration calibrated(const std::string& key, double factor) const {
    const auto k = calibrated();
    return calibrate(measured(key, factor), presets_, rules_, k);
  }
  static const ConstantFit& fit_of(const Calibration& c, const std::string& key) {
    for (const ConstantFit& f : c.constants)
      if (f.constant.key == key) return f;
    throw std::runtime_error(key);
  }
};

TEST_F(Calibrate, MovesTheConstantThatMoved) {
  const Calibration c = calibrated("gemm_efficiency", 0.92);
  EXPECT_EQ(c.rows, 7);
  EXPECT_GT(c.mape_before, 3.0);
  EXPECT_LT(c.mape_after, 1.0);
  EXPECT_LT(c.mape_left_out, c.mape_before);
  EXPECT_GE(c.mape_left_out, c.mape_after);
  const ConstantFit& gemm = fit_of(c, "gemm_efficiency");
  EXPECT_LT(gemm.value, gemm.constant.prior);  // bonus and time factor take their share of the blame
  // The calibrated prediction of a run it has not seen is closer than the presets' one.
  const RunRow next = run_of(6144, 2, 2);
  const double real = *predict_run(next, map_, moved("gemm_efficiency", 0.92).options()).step_s;
  const CalibratedPresets fitted(presets_, settings_of(c), c.residual.of);
  const double calibrated = *predict_run(next, map_, fitted.options()).step_s;
  const double before = *predict_run(next, map_, {presets_, nullptr, {}}).step_s;
  EXPECT_LT(std::abs(calibrated / real - 1), 0.02);  // rows are taken to be 8 % off by themselves
  EXPECT_GT(std::abs(before / real - 1), 0.03);
}

// Errors in both directions speak for no constant: what a fit makes of them helps no further run, and the presets stay.
TEST_F(Calibrate, AFitThatHelpsNoOtherRunIsNotTaken) {
  auto scattered = measured("time_factor", 1.0);
  for (std::size_t i = 0; i < scattered.size(); ++i)
    scattered[i].step = scattered[i].step * (i % 2 == 0 ? 1.06 : 1 / 1.06);
  const auto k = calibrated();
  const Calibration c = calibrate(scattered, presets_, rules_, k);
  EXPECT_FALSE(c.taken);
  EXPECT_GT(c.mape_left_out, c.mape_before);
  EXPECT_DOUBLE_EQ(c.mape_after, c.mape_before);
  for (const ConstantFit& f : c.constants) EXPECT_DOUBLE_EQ(f.value, f.constant.prior) << f.constant.key;
  EXPECT_DOUBLE_EQ(calibration_file_of(c).error_left_out_percent, c.mape_before);
  // Negative control: an error that all runs share is taken, and so is one run's, of which nothing can be said.
  EXPECT_TRUE(calibrated("time_factor", 1.06).taken);
  scattered.resize(1);
  EXPECT_TRUE(calibrate(scattered, presets_, rules_, k).taken);
}

// However far a whole machine is off, what all five runs share is learned, and what they do not stays.
TEST_F(Calibrate, AMachineThatIsFarOffIsLearnedAsAWhole) {
  for (const double factor : {0.75, 1.25, 1.5}) {
    auto five = measured("time_factor", factor);
    five.resize(5);
    const auto k = calibrated();
    const Calibration c = calibrate(five, presets_, rules_, k);
    EXPECT_LT(c.mape_after, 2.0) << factor;
    const RunRow next = run_of(6144, 2, 2);
    const double real = *predict_run(next, map_, moved("time_factor", factor).options()).step_s;
    const CalibratedPresets fitted(presets_, settings_of(c), c.residual.of);
    EXPECT_LT(std::abs(*predict_run(next, map_, fitted.options()).step_s / real - 1), 0.02) << factor;
  }
}

// Steps that are all longer by one factor, beside a scatter of their own: the next runs are predicted within 5 %, and no worse
// than by the median ratio.
TEST_F(Calibrate, AUniformlySlowerMachineIsLearnedFromFiveRuns) {
  constexpr std::array kScatter = {1.03, 0.98, 1.0, 0.96, 1.02};
  const std::vector<RunRow> next = {run_of(6144, 2, 2), run_of(2048, 4, 1), run_of(8192, 1, 8),
                                    run_of(4096, 1, 4)};
  for (const double factor : {1.35, 2.0, 3.0})
    for (const bool scattered : {false, true}) {
      auto five = measured("time_factor", 1.0);
      five.resize(5);
      std::vector<double> ratios;
      for (std::size_t i = 0; i < five.size(); ++i) {
        ratios.push_back(factor * (scattered ? kScatter[i] : 1));
        five[i].step = five[i].step * ratios.back();
      }
      std::ranges::sort(ratios);
      const auto k = calibrated();
      const Calibration c = calibrate(five, presets_, rules_, k);
      EXPECT_TRUE(c.taken);
      const CalibratedPresets fitted(presets_, settings_of(c), c.residual.of);
      double error = 0, of_median = 0;
      for (const RunRow& row : next) {
        const double real = factor * *predict_run(row, map_, {presets_, nullptr, {}}).step_s;
        const double ratio = *predict_run(row, map_, fitted.options()).step_s / real;
        EXPECT_NEAR(ratio, 1, 0.05) << factor << ' ' << row.model.hidden;
        error += std::abs(ratio - 1) / 4;
        of_median += std::abs(ratios[2] / factor - 1) / 4;
      }
      EXPECT_LT(error, of_median + 0.03)
          << factor;  // what a short step costs beside its works does not scale
    }
}

// A machine that is slower as a whole: its time factor says so, within what a prior of 7 % lets five runs say.
TEST_F(Calibrate, SlowerMachineIsSeenFromFiveRuns) {
  auto five = measured("time_factor", 1.15);
  five.resize(5);
  const auto k = calibrated();
  const Calibration c = calibrate(five, presets_, rules_, k);
  const CalibratedPresets fitted(presets_, settings_of(c), c.residual.of), truth = moved("time_factor", 1.15);
  for (const RunRow& next : {run_of(6144, 2, 2), run_of(2048, 4, 1)}) {
    const double real = *predict_run(next, map_, truth.options()).step_s;
    EXPECT_NEAR(*predict_run(next, map_, fitted.options()).step_s / real, 1, 0.05);
  }
}

// Near the runs of the calibration the interval is theirs; another device's is that of published runs.
TEST_F(Calibrate, CovarianceSaysHowFarARunIsFromTheMeasuredOnes) {
  CalibrationFile file = calibration_file_of(calibrated("gemm_efficiency", 0.92));
  for (const RunRow& row : runs()) file.runs.push_back(row.run_id);
  constexpr double kPublished = 0.3;
  const auto uncertainty = [&](const RunRow& row) {
    return calibrated_uncertainty(resolve(row, map_, presets_), file, presets_, kPublished);
  };
  const CalibratedUncertainty near = uncertainty(run_of(4096, 2, 2));
  RunRow other = run_of(4096, 2, 2);
  other.gpu = "A100-SXM4-80GB";
  other.framework = "PaddleNLP";
  const CalibratedUncertainty far = uncertainty(other);
  EXPECT_GT(near.known, 0.5);
  EXPECT_FALSE(near.far());
  EXPECT_LT(near.half_width, kPublished);
  EXPECT_GT(near.half_width, 0.02);
  // Two runs that agree by chance prove less than seven.
  CalibrationFile two = file;
  two.runs.resize(2);
  EXPECT_GT(calibrated_uncertainty(resolve(run_of(4096, 2, 2), map_, presets_), two, presets_, kPublished)
                .half_width,
            near.half_width);
  EXPECT_LT(far.known, near.known);
  EXPECT_GT(far.half_width, near.half_width);

  CalibrationFile without = file;
  without.covariance.clear();
  EXPECT_EQ(calibrated_uncertainty(resolve(run_of(4096, 2, 2), map_, presets_), without, presets_, kPublished)
                .half_width,
            kPublished);
}

// Layouts with TP are slower for a reason that no constant has: others with TP are told so, and those without are not.
TEST_F(Calibrate, LayoutsThatAreAlikeAreOffAlike) {
  constexpr double kSlower = 1.15;
  const auto truth = [&](const RunRow& row) {
    return *predict_run(row, map_, {presets_, nullptr, {}}).step_s * (row.plan.tp > 1 ? kSlower : 1);
  };
  std::vector<RunRow> rows = {run_of(4096, 1, 4), run_of(4096, 2, 4), run_of(8192, 1, 4), run_of(4096, 1, 1),
                              run_of(4096, 2, 1)};
  for (RunRow& row : rows) row.step_time = Seconds(truth(row));
  const auto own = measured_runs(rows, map_, presets_);
  const auto k = constants_of(own, presets_, rules_);
  const Calibration c = calibrate(own, presets_, rules_, k);
  CalibrationRules constants_alone = rules_;
  constants_alone.own_residual.sigma = 0;
  const Calibration without = calibrate(own, presets_, constants_alone, k);
  EXPECT_TRUE(without.residual.of.empty());
  const CalibratedPresets with_it(presets_, settings_of(c), c.residual.of),
      without_it(presets_, settings_of(without));
  double with = 0, alone = 0;
  for (const RunRow& next :
       {run_of(6144, 1, 4), run_of(6144, 1, 1), run_of(6144, 2, 4), run_of(6144, 2, 1)}) {
    with += std::abs(*predict_run(next, map_, with_it.options()).step_s / truth(next) - 1) / 4;
    alone += std::abs(*predict_run(next, map_, without_it.options()).step_s / truth(next) - 1) / 4;
  }
  EXPECT_LT(with, 0.04);
  EXPECT_GT(alone, 1.2 * with);  // negative control
  // The covariance that comes with it knows the difference of near and far, and the file keeps it all.
  CalibrationFile file = calibration_file_of(c);
  for (const RunRow& row : rows) file.runs.push_back(row.run_id);
  RunRow far = run_of(6144, 1, 1);
  far.plan.tp = 1;
  far.plan.pp = 8;
  far.plan.dp = 1;
  far.training.seq_len = 65536;
  const auto known = [&](const RunRow& row) {
    return calibrated_uncertainty(resolve(row, map_, presets_), file, presets_, 0.3).known;
  };
  EXPECT_GT(known(run_of(4096, 1, 4)), known(far) + 0.1);
  const TempDir folder;
  save_calibration(folder.path() / "c.json", file);
  EXPECT_EQ(load_calibration(folder.path() / "c.json"), file);
  EXPECT_EQ(file.learned().log_factor(layout_point(own.front().run)),
            c.residual.of.log_factor(layout_point(own.front().run)));
  file.residual->covariance.pop_back();
  save_calibration(folder.path() / "c.json", file);
  EXPECT_THROW(load_calibration(folder.path() / "c.json"), ConfigError);
}

TEST_F(Calibrate, LeavesWhatTheRowsCannotTell) {
  const Calibration c = calibrated("gemm_efficiency", 0.92);
  // No run has an unfused norm, and none leaves the node: neither constant may move or claim to be known.
  const ConstantFit& norm = fit_of(c, "pointwise_unfused_norm_passes");
  EXPECT_DOUBLE_EQ(norm.value, norm.constant.prior);
  EXPECT_FALSE(norm.identified());
  for (const ConstantFit& f : c.constants) EXPECT_NE(f.constant.of, ConstantOwner::fabric);
}

// Negative control of both: runs as predicted move nothing.
TEST_F(Calibrate, RunsAsPredictedMoveNothing) {
  const Calibration c = calibrated("gemm_efficiency", 1.0);
  EXPECT_LT(c.mape_after, 1e-6);
  for (const ConstantFit& f : c.constants) EXPECT_NEAR(f.value / f.constant.prior, 1, 1e-9) << f.constant.key;
}

// The time factor is of one user's machines: the presets never take it.
TEST_F(Calibrate, PresetsHaveNoMachineOfTheirOwn) {
  std::vector<RunRow> rows = runs();
  for (RunRow& r : rows) r.step_time = Seconds(1);
  const auto measured = measured_runs(rows, map_, presets_);
  const auto has = [](const std::vector<FreeConstant>& calibrated) {
    return std::any_of(calibrated.begin(), calibrated.end(),
                       [](const FreeConstant& k) { return k.key == "time_factor"; });
  };
  EXPECT_TRUE(has(constants_of(measured, presets_, rules_, FitOf::own_runs)));
  EXPECT_FALSE(has(constants_of(measured, presets_, rules_, FitOf::presets)));
}

TEST_F(Calibrate, FileKeepsEverythingAndRefusesWhatCannotMove) {
  const TempDir folder;
  CalibrationFile file = calibration_file_of(calibrated("gemm_efficiency", 0.92));
  file.runs = {"a", "b"};
  const auto path = folder.path() / "c.json";
  save_calibration(path, file);
  EXPECT_EQ(load_calibration(path), file);
  file.constants.front().key = "gemm_eficiency";
  save_calibration(path, file);
  EXPECT_THROW(load_calibration(path), ConfigError);
  EXPECT_THROW(
      load_calibration(folder.write("v2.json", R"({"schema": "sextant.calibration/2", "constants": []})")),
      ConfigError);
}

// Two stacks of one class and one of another: what the rows of the first say moves its kin by so much, and nobody else.
TEST(FitProblem, ConstantsOfKinMoveTogether) {
  std::vector<FreeConstant> calibrated;
  for (const char* owner : {"first", "kin", "stranger"})
    calibrated.push_back({ConstantOwner::stack, owner, "pointwise_passes", 2, 0.25});
  for (const std::size_t k : {0, 1}) {
    calibrated[k].kin = "fused";
    calibrated[k].kinship = 0.8;
  }
  calibrated[2].kin = "eager";
  calibrated[2].kinship = 0.8;
  const std::filesystem::path presets = test::preset_dir();
  const FitProblem p{{}, calibrated, presets};
  const Posterior prior{Eigen::VectorXd::Zero(3), p.prior_covariance()};
  Eigen::MatrixXd j = Eigen::MatrixXd::Zero(20, 3);
  j.col(0).setOnes();
  const Eigen::VectorXd off = Eigen::VectorXd::Constant(20, -0.08), even = Eigen::VectorXd::Ones(20);
  const Posterior fit = update(prior, j, off, prior.mean, even, 0.05);
  EXPECT_NEAR(fit.mean[0], -0.08, 0.005);
  EXPECT_NEAR(fit.mean[1], 0.8 * fit.mean[0], 1e-9);
  EXPECT_NEAR(fit.mean[2], 0, 1e-9);
  EXPECT_LT(fit.covariance(1, 1), 0.5 * fit.covariance(2, 2));
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

TEST(CalibrateConstants, OneAtItsLimitSaysSo) {
  ConstantFit fit;
  fit.constant.low = 0.4;
  fit.constant.high = 1.0;
  const auto at_limit = [&](double value) {
    fit.value = value;
    return fit.at_limit();
  };
  EXPECT_TRUE(at_limit(0.4) && at_limit(1.0));
  EXPECT_FALSE(at_limit(0.42) || at_limit(0.98));
  fit.constant.low = fit.constant.high = 0;  // without limits
  EXPECT_FALSE(at_limit(1.0));
}

}  // namespace
}  // namespace sextant
