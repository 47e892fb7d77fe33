// Of runs whose framework or fabric no preset knows: which, how many, and what they are taken as.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace sextant {

// One line each, in order of names. `notes`: of the runs (ResolvedRun::note, RunPrediction::note).
std::vector<std::string> unknown_names(std::span<const std::string> notes);

}  // namespace sextant
