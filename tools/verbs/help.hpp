// The text of --help: fits the terminal, the examples first among what a reader copies.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tools/inputs/verb.hpp"
#include "tools/terminal/terminal.hpp"

namespace sextant {

std::string overview_text(const Terminal&);
std::string help_text(const CLI::App&, const Verb&, const Terminal&);

}  // namespace sextant
