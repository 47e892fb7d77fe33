// What would a newcomer see? For every source with at least `min_rows` timed rows: the constants are fitted to all
// other sources from cold priors, its own stack keeps its class values and its facts; then again after a few of its
// rows. In-sample figures flatter; these say what the next cluster will get.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "planner/calibration/calibrated_constants.hpp"

namespace sextant {

// Errors in percent over all its rows. After the few: over up to 60 others, mean of `draws` draws, each calibrated and predicted
// as `sextant calibrate --runs` and `--calibration` do. Chosen: the few are those that `sextant calibrate --suggest` names,
// of all rows; over all others.
struct LeftOut {
  std::string source;
  int rows = 0;
  double mape = 0, median = 0;
  double mape_few = 0, median_few = 0;
  double coverage_few = 0;  // share of the others inside their 90 % interval
  double mape_chosen = 0, median_chosen = 0, coverage_chosen = 0;  // the same after those that were chosen
};
struct LeaveOutOptions {
  int min_rows = 7;
  int few = 5, draws = 12;
  std::uint64_t seed = 1;
  int fit_rows_per_source = 50;  // at most so many of each other source enter the fit
};
std::vector<LeftOut> leave_one_source_out(std::span<const MeasuredRun>,
                                          const std::filesystem::path& preset_dir, const CalibrationRules&,
                                          const LeaveOutOptions& = {});

}  // namespace sextant
