// What would a newcomer see of memory? For every source that a fit of memory coefficients reads: those fits are repeated
// without its rows, from their priors, and its peaks and outcomes are predicted with the result. A stack that no other
// source runs stays at the priors of its coefficients; what is counted from a framework's code is a fact and stays.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "planner/validation/validate.hpp"

namespace sextant {

// Of SourceScore what concerns memory: peaks and their error, out of memory foreseen, feared and missed.
std::vector<SourceScore> leave_one_source_out_memory(std::span<const RunRow>, const FrameworkMap&,
                                                     const std::filesystem::path& preset_dir);

}  // namespace sextant
