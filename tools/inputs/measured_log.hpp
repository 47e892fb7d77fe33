// A measured run from the log of its training: what the log says, and the question beside it.
#pragma once

#include <filesystem>
#include <string>

#include "tools/inputs/calibrate_material.hpp"

namespace sextant {

// `own_plan`: the layout that is stated with the log, by key or file; empty: that of options.question, or what the log says.
// Notes and warnings go to `material`. Throws UsageError where the layout is not known, ConfigError where log, question
// and machine do not go together.
MeasuredRun run_of_log(const std::string& file, const std::string& own_plan, const MaterialOptions&,
                       const std::filesystem::path& presets, Material& material);

}  // namespace sextant
