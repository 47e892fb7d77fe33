// A file of another framework, told by its content, as a training run.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/error.hpp"
#include "tools/import/imported_run.hpp"
#include "tools/import/shell_variables.hpp"

namespace sextant {

// Reads the file, or of a folder of `sextant export` what it starts. The environment has what a script uses
// and does not set. Throws ConfigError for what is no such file, with what it is where that can be told.
ImportedRun import_file(const std::filesystem::path&, const ShellEnvironment&);

// Gives a model its preset's name, and the vocabulary that its file leaves open, where a preset has that shape.
void name_by_shape(ImportedRun&, const std::filesystem::path& presets);

}  // namespace sextant
