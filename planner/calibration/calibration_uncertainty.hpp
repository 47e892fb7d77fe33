// How sure is a prediction under a user's calibration? The covariance of the fit says how far the constants that decide
// this run may still be off: little near what was measured, as much as before the fit where the runs said nothing about
// them. What the runs know narrows the interval to their own error; the rest keeps that of published runs
// (planner/simulation/uncertainty.hpp). The same of what layouts are off by beyond constants (planner/simulation/residual.hpp).
//
// Ignores memory, and what no constant stands for.
#pragma once

#include "planner/calibration/calibration_file.hpp"

namespace sextant {

struct CalibratedUncertainty {
  double half_width = 0;  // relative, of a 90 % interval [value / (1 + u), value (1 + u)]
  double known =
      0;  // share of the uncertainty about this run's constants that the calibration removed, [0, 1]
  bool far() const { return known < 0.5; }
};

// `published`: half width without a calibration. A file without covariance knows nothing. `base` as in calibrate().
CalibratedUncertainty calibrated_uncertainty(const ResolvedRun&, const CalibrationFile&,
                                             const std::filesystem::path& preset_dir, double published,
                                             std::span<const Setting> base = {});

}  // namespace sextant
