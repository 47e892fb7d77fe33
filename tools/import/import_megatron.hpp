// Megatron-LM's options as a training run. Names and defaults: NVIDIA/Megatron-LM d98e8a6, megatron/training/arguments.py.
#pragma once

#include <string>

#include "tools/import/command_flags.hpp"
#include "tools/import/imported_run.hpp"

namespace sextant {

// Options of Megatron-LM are among them.
bool is_megatron_command(const CommandFlags&);

// Throws ConfigError (naming `file`) for a model that is no decoder known here and for values that are no numbers.
ImportedRun import_megatron(const CommandFlags&, const std::string& file);

}  // namespace sextant
