// Where the presets lie. Installed, they are at ../share/sextant/presets of the executable's folder; in a bundle
// (tools/dev/gpu_checks.sh), at ../presets; from a build folder, in the source tree. What is among them is core/base/preset_path's to tell, their content the loaders'.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

namespace sextant {

inline constexpr std::array<std::string_view, 7> kPresetKinds = {"models", "clusters", "devices", "fabrics",
                                                                 "stacks", "cost",     "profiles"};

// `folder` when it is not empty. Throws ConfigError when there is none.
std::filesystem::path find_presets(const std::string& folder);

}  // namespace sextant
