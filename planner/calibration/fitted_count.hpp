// How many numbers of the presets were fitted to whole training runs? What the two fits of `calibrate --refit` move, and
// what they do not: constants of the cost model that are marked F all the same, each counted once where several
// generations share its value.
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "planner/calibration/calibrated_constants.hpp"

namespace sextant {

struct FittedCount {
  std::size_t step_time = 0, memory = 0;  // moved
  std::set<std::string> frozen;           // marked F, not moved
  std::size_t all() const { return step_time + memory + frozen.size(); }
};

// `calibrated constants`: those of a fit of the presets.
FittedCount fitted_count(const std::filesystem::path& preset_dir, std::span<const FreeConstant> calibrated);

}  // namespace sextant
