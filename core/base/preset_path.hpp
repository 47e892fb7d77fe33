// Preset files by name: PRESETS/KIND/NAME.json, with KIND one of models, devices, fabrics, clusters, stacks,
// cost, profiles. Upper and lower case, '-', '_' and blanks are one to a reader; a file may list other names of itself
// under "aliases". Nothing is searched for outside the folder given.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// The file of the preset, or nothing.
std::optional<std::filesystem::path> find_preset(const std::filesystem::path& presets, std::string_view kind,
                                                 std::string_view name);

// The names that have this part, which may be all that somebody knows of one: "a-1, a-2 or a-3". Empty when none has it, and
// where it tells too little.
std::string names_around(const std::string& part, const std::vector<std::string>& names);

// The nearest name or alias among these kinds, in the spelling of its file, or the names around it; empty when nothing is near.
std::string nearest_preset(const std::filesystem::path& presets,
                           std::initializer_list<std::string_view> kinds, std::string_view name);

// Names of one kind (of their files, without aliases), sorted.
std::vector<std::string> preset_names(const std::filesystem::path& presets, std::string_view kind);

}  // namespace sextant
