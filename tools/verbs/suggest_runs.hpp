// Which of a table's layouts are worth measuring before any other? What `sextant calibrate --suggest` answers: rows without a
// measured step are candidates, rows with one are known already, and rows that ran out of memory, or are predicted to, are
// left out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "planner/calibration/calibrated_constants.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

// Throws ConfigError on tables without a candidate.
void suggest_from_tables(Session&, const std::vector<std::string>& tables, int count,
                         const std::filesystem::path& presets, const CalibrationRules&);

}  // namespace sextant
