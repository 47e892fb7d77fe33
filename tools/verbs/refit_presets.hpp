// The presets with the constants that `sextant calibrate --refit` has fitted in the place of their own, each with the
// command and the rows it comes from.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "planner/calibration/calibrate.hpp"
#include "tools/verbs/refit_memory.hpp"

namespace sextant {

// Writes them to `folder`: a new or empty one, or a folder of presets (also `presets` itself), whose files are replaced.
// A constant that says the same already keeps its date. Values have four digits; memory coefficients stay where the rows
// tell no better ones (finds_better). Gives the number that changed.
// Throws ConfigError where the folder holds something else.
int write_refitted(const std::filesystem::path& presets, const std::filesystem::path& folder,
                   const Calibration&, std::span<const MeasuredRun>, const std::vector<RefittedMemory>&,
                   const std::string& date);

// The widths of intervals in the presets of this folder, from the runs of these files as the folder's own constants predict
// them: after write_refitted. Gives the number that changed.
int write_widths(const std::filesystem::path& folder, const std::vector<std::string>& run_files,
                 const std::string& date);

}  // namespace sextant
