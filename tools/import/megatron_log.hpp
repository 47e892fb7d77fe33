// The arguments that Megatron-LM prints when it starts, "  hidden_size ..... 4096", as the command line that means the same.
#pragma once

#include <optional>
#include <string>

#include "tools/import/command_flags.hpp"

namespace sextant {

// Nothing where the text prints none.
std::optional<CommandFlags> logged_arguments(const std::string& text);

}  // namespace sextant
