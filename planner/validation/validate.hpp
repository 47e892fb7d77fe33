// How good are the predictions on measured runs? Every row is resolved, lowered, priced and simulated; errors
// are reported per source. Signed errors are kept raw: nothing is subtracted, no row is fitted.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/runs/framework_map.hpp"
#include "core/runs/run_row.hpp"
#include "cost_models/constants.hpp"
#include "planner/answers/decision_rule.hpp"
#include "planner/simulation/residual.hpp"
#include "planner/simulation/setting.hpp"
#include "planner/simulation/uncertainty.hpp"

namespace sextant {

struct RunPrediction {
  std::string run_id;
  std::optional<double> step_s, step_lower_s, step_upper_s;
  std::optional<double> memory_GiB, memory_lower_GiB, memory_upper_GiB;
  std::optional<bool> fits;
  std::optional<double> chance_of_overflow;     // that it does not fit, [0, 1]
  std::optional<UncertaintyClass> uncertainty;  // why the intervals are as wide as they are
  double step_half_width = 0;                   // relative, of the step's
  double exposed_share = 0;                     // of the step that collectives and copies lengthen it by
  Judged judged;  // what of the layout is unusual, and how many kinds of parallelism it combines
  std::string stack;
  std::string note;  // why a cell is empty, or what was assumed
};

struct PredictOptions {
  std::filesystem::path preset_dir;
  // Replaces the constants of a generation's preset: what a calibration tries.
  const std::vector<CostPreset>* constants = nullptr;
  // Changes a run before it is priced, when set: constants of its stack or fabric.
  std::function<void(ResolvedRun&)> adjust = {};
  const UncertaintyRules* uncertainty =
      nullptr;                         // in the place of those in preset_dir: read once for many runs
  const Residual* residual = nullptr;  // of a calibration
};

// Presets with calibrated constants in their place, and what a calibration learned beyond them.
class CalibratedPresets {
 public:
  CalibratedPresets(const std::filesystem::path& preset_dir, std::vector<Setting>, Residual = {});
  CalibratedPresets(const CalibratedPresets&) = delete;
  CalibratedPresets& operator=(const CalibratedPresets&) = delete;
  const PredictOptions& options() const { return options_; }

 private:
  std::vector<Setting> settings_;
  Residual residual_;
  std::vector<CostPreset> presets_;
  PredictOptions options_;
};

// A run that is decided; run_id stays empty.
RunPrediction predict_resolved(ResolvedRun, const PredictOptions&);
// Its step alone: a third of the work. Nothing where the layout is unlawful.
std::optional<Seconds> predict_step(ResolvedRun, const PredictOptions&);
// The same under one set of constants after another; the run is lowered anew only where they change its links.
std::vector<std::optional<Seconds>> predict_steps(const ResolvedRun&,
                                                  std::span<const CalibratedPresets* const>);
RunPrediction predict_run(const RunRow&, const FrameworkMap&, const PredictOptions&);

struct ManyRuns {
  // Of each row the first that asks the same under another name, or itself; empty: none does. One answer serves them all.
  std::span<const std::size_t> alike = {};
  // Told now and then, from the calling thread: how many rows are done.
  std::function<void(std::size_t)> tell = {};
};
// All rows, in parallel; the order of the result is the order of the rows.
std::vector<RunPrediction> predict_runs(std::span<const RunRow>, const FrameworkMap&, const PredictOptions&,
                                        const ManyRuns& = {});

// Errors are relative, in percent: 100 * (predicted / measured - 1).
struct SourceScore {
  std::string source;
  int rows = 0, unpredicted = 0;  // with a measured time; of those, not predicted
  double mape = 0, median = 0, bias = 0, p90 = 0;
  int groups = 0;          // of at least four measured layouts
  double kendall_tau = 0;  // mean over groups
  double regret_1 = 0, regret_2 = 0,
         regret_3 = 0;      // best measured of the k best predicted to fit, mean, percent
  double worst_regret = 0;  // of the first, over groups
  std::string worst_group;
  int oom_true = 0, oom_false = 0, oom_missed = 0;  // predicted and real, predicted only, real only
  // Predicted only, of runs of which is assumed that they recompute nothing: they may have, so that it is no error.
  int oom_unknown = 0;
  int memory_rows = 0;
  double memory_mape = 0;
  int covered = 0, memory_covered = 0;  // measured times and peaks inside the predicted interval
  double oom_precision() const;
  double oom_recall() const;
};

struct ScoreOptions {
  bool with_quality_c = false;
};

std::vector<SourceScore> score_runs(std::span<const RunRow>, std::span<const RunPrediction>,
                                    const ScoreOptions& = {});

// Kendall's tau-a of two equally long lists, in [-1, 1]; ties count as neither.
double kendall_tau(std::span<const double> a, std::span<const double> b);

}  // namespace sextant
