// Where the presets lie and what is among them. Installed, they are at ../share/sextant/presets beside the
// executable; from a build folder, in the source tree. Reading their content is the loaders' business
// (core/).
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

inline constexpr std::array<std::string_view, 6> kPresetKinds = {"models",  "clusters", "devices",
                                                                 "fabrics", "stacks",   "cost"};

// `folder` when it is not empty. Throws ConfigError when there is none.
std::filesystem::path find_presets(const std::string& folder);

// Names of one kind, sorted.
std::vector<std::string> preset_names(const std::filesystem::path& presets, std::string_view kind);

}  // namespace sextant
