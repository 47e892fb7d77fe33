// How right are the models where nothing was fitted to? Constants of step time and of memory are fitted from cold to a part
// of the measured runs, and the rest is predicted with them: every source by a fit to the others, larger clusters by a fit
// to those of at most 64 GPUs, one device, context parallelism, fp8 and ZeRO 0 by fits that saw none of each.
//
// One Jacobian, at the cold start, serves every fit (as in leave_out); residuals are simulated anew after each step. Ignores
// what a preset states beside the constants that a refit moves: rules and counted facts are the same in every fit.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/runs/framework_map.hpp"
#include "core/runs/run_row.hpp"
#include "planner/calibration/calibrated_constants.hpp"
#include "planner/validation/validate.hpp"

namespace sextant {

// Runs that no fit saw, percent. Means are over sources, as a source of many rows is one witness.
struct Extrapolation {
  std::string held_out;  // "more than 64 GPUs"
  int fitted = 0, rows = 0, sources = 0;
  double mape = 0, bias = 0;
  double coverage = 0;  // share of the rows inside their 90 % intervals
};

struct HeldOut {
  std::vector<RunPrediction> predictions;  // of each row, by a fit that saw no row of its source
  std::vector<SourceScore> sources;        // scores of these
  std::vector<Extrapolation> extrapolations;
};

struct HeldOutOptions {
  int fit_rows_per_source = 60;  // at most so many of each source enter a fit
  bool extrapolations = true;
  bool with_quality_c = false;  // scored; never fitted
};

// Throws ConfigError as measured_runs and load_calibration_rules do.
HeldOut held_out(std::span<const RunRow>, const FrameworkMap&, const std::filesystem::path& preset_dir,
                 const CalibrationRules&, const HeldOutOptions& = {});

// Over the groups of all sources that have any: mean regret of the layout predicted fastest, percent, Kendall's tau, and
// the group whose regret is largest.
struct RankingScore {
  int groups = 0;
  double regret = 0, tau = 0, worst_regret = 0;
  std::string worst;
};
RankingScore ranking_of(std::span<const SourceScore>);

}  // namespace sextant
