// Plans whose works are those of LLaMA at usual widths, for a profile that is not of one plan: each preset model cut to
// two layers, which has the same kinds of work as all of them, on one rank.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/plan/plan_file.hpp"

namespace sextant {

// For the CPU; or for the GPU of this name ("NVIDIA H200"), whose preset device gives the peaks.
std::vector<PlanFile> profile_ladder(const std::string& gpu, bool quick,
                                     const std::filesystem::path& presets);

}  // namespace sextant
