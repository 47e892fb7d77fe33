// The fit of `sextant calibrate` to all that was read, and the peaks of memory beside it.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "planner/calibration/calibration_file.hpp"
#include "tools/inputs/calibrate_material.hpp"

namespace sextant {

// What links and kernels measured by themselves say is where the fit to whole steps starts from.
Calibration fit_material(const Material&, const std::filesystem::path& presets, const CalibrationRules&,
                         FitOf);

// In GiB, by run, as the runs count them; nothing where none was measured.
std::vector<std::optional<double>> predicted_peaks(const Material&, const std::filesystem::path& presets);

}  // namespace sextant
