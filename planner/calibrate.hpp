// Which constants do measured step times speak for? Least squares on the logarithm of time with a prior on every
// constant: what the rows cannot tell stays where it was, and the result says which constants moved, how far and how
// sure that is.
//
// Ignores memory (planner/calibrate_memory) and errors that rows of one source share.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "planner/knobs.hpp"
#include "planner/validate.hpp"

namespace sextant {

struct KnobFit {
  Knob knob;
  double value = 0;
  double sigma = 0;  // relative, after the fit
  bool identified() const { return sigma < 0.7 * knob.sigma; }
  bool at_limit() const {
    return (knob.low > 0 && value < knob.low * 1.001) || (knob.high > 0 && value > knob.high / 1.001);
  }
};

struct Calibration {
  std::vector<KnobFit> constants;
  std::vector<double> covariance;  // of the logarithms, row by row
  int rows = 0;
  // A user's fit that predicts each run worse from the others than the presets do is not taken: the constants stay.
  bool taken = true;
  // Percent, of the rows fitted, with these constants; left_out: each row predicted by the fit to all the others
  // (linearised), taken or not.
  double mape_before = 0, mape_after = 0, mape_left_out = 0;
  std::vector<double> before, after;  // predicted seconds of each run
};

// One run is enough to move the machine's time factor, with nothing to say whether that helps; five move a stack's and a
// fabric's constants too.
// `base` stands in the place of the presets, where they are not what the knobs' priors were read from.
Calibration calibrate(std::span<const MeasuredRun>, const std::filesystem::path& preset_dir,
                      const CalibrationRules&, std::span<const Knob>, FitOf = FitOf::own_runs,
                      std::vector<Setting> base = {});

std::vector<Setting> settings_of(const Calibration&);

}  // namespace sextant
