// Shell completion scripts, made from the CLI11 app itself, so that they never differ from what is parsed.
// Names of models, clusters and stacks are asked of `sextant presets` when TAB is pressed.
#pragma once

#include <string>
#include <vector>

#include "tools/verbs/command.hpp"

namespace sextant {

std::string bash_completion(const CommandLine&);
std::string zsh_completion(const CommandLine&);
std::string fish_completion(const CommandLine&);

}  // namespace sextant
