// Which constants do measured step times speak for? Least squares on the logarithm of time with a prior on every
// constant: what the rows cannot tell stays where it was, and the result says which constants moved, how far and how
// sure that is. What of a user's rows no constant explains is learned beside them (planner/simulation/residual.hpp).
//
// Ignores memory (planner/calibration/calibrate_memory) and errors that rows of one source share.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "planner/calibration/calibrated_constants.hpp"
#include "planner/simulation/residual.hpp"
#include "planner/validation/validate.hpp"

namespace sextant {

struct ConstantFit {
  FreeConstant constant;
  double value = 0;
  double sigma = 0;  // relative, after the fit
  bool identified() const { return sigma < 0.7 * constant.sigma; }
  bool at_limit() const {
    return (constant.low > 0 && value < constant.low * 1.001) ||
           (constant.high > 0 && value > constant.high / 1.001);
  }
};

// What of the runs is beyond the constants, with the covariance of it at each run (logarithms, row by row) and of it with the
// constants (a row for each of these).
struct LearnedResidual {
  Residual of;
  std::vector<double> covariance, with_constants;
};

struct Calibration {
  std::vector<ConstantFit> constants;
  std::vector<double> covariance;  // of the logarithms, row by row
  LearnedResidual residual;
  int rows = 0;
  // A user's fit that predicts each run clearly worse from the others than the presets do (CalibrationRules::own_tolerance)
  // is not taken: the constants stay, and nothing is learned beside them.
  bool taken = true;
  // Percent, of the rows fitted, with these constants; left_out: each row predicted by the fit to all the others
  // (linearised), taken or not.
  double mape_before = 0, mape_after = 0, mape_left_out = 0;
  std::vector<double> before, after;  // predicted seconds of each run
};

// One run is enough to move the machine's time factor, with nothing to say whether that helps; five move a stack's and a
// fabric's constants too. A fit of the presets learns no residual: they belong to no layout.
// `base` stands in the place of the presets, where they are not what the calibrated constants' priors were read from.
Calibration calibrate(std::span<const MeasuredRun>, const std::filesystem::path& preset_dir,
                      const CalibrationRules&, std::span<const FreeConstant>, FitOf = FitOf::own_runs,
                      std::vector<Setting> base = {});

std::vector<Setting> settings_of(const Calibration&);

}  // namespace sextant
