// A file of another framework, told by its content, as a training run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/base/error.hpp"
#include "tools/import/imported_run.hpp"
#include "tools/import/shell_variables.hpp"

namespace sextant {

// Longer texts are no configuration and are not parsed.
inline constexpr std::uintmax_t kLongestFile = 4 << 20;

// Reads the file, packed with gzip or not; of a folder of `sextant export`, what it starts; with "FILE.py:NAME" one function of a
// module. The environment has what a script uses and does not set. Models get the names of presets of their shape. `layers`: of
// the model that is named beside the file and wins over its own, 0 where none is. Throws ConfigError for what is no such file.
ImportedRun import_file(const std::string& file, const std::filesystem::path& presets,
                        const ShellEnvironment&, int layers = 0);

// "a torchtitan configuration" where import_file would read the text, or empty. By its form alone: its values are not looked at.
std::string importable_as(const std::string& text);

inline constexpr const char* kImportable =
    "a Megatron-LM command line, script or log with its arguments, a configuration of torchtitan (TOML, or "
    "a Python function), DeepSpeed (JSON), nanotron (YAML), accelerate (YAML), NeMo 1 (YAML), Megatron-LM "
    "(--yaml-cfg) or Megatron-Bridge (printed YAML)";

}  // namespace sextant
