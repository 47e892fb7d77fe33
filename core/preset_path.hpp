// Preset files by name: PRESETS/KIND/NAME.json. Upper and lower case, '-', '_' and blanks are one to a
// reader; a file may list other names of itself under "aliases". Nothing is searched for outside the folder
// given.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// The file of the preset, or nothing.
std::optional<std::filesystem::path> find_preset(const std::filesystem::path& presets, std::string_view kind,
                                                 std::string_view name);

// The nearest name or alias, in the spelling of its file; empty when nothing is near.
std::string nearest_preset(const std::filesystem::path& presets, std::string_view kind,
                           std::string_view name);

}  // namespace sextant
