// The text of --help: fits the terminal, the examples first among what a reader copies.
#pragma once

#include <span>
#include <string>

#include <CLI/CLI.hpp>

#include "core/base/error.hpp"
#include "tools/inputs/verb.hpp"
#include "tools/terminal/terminal.hpp"

namespace sextant {

inline constexpr const char* kProgramDescription =
    "Plans, simulates and runs LLaMA training layouts: the best parallel layout for a model on a cluster, "
    "how "
    "fast it will be, whether it fits, and why not another.";

struct ExitCodeMeaning {
  ExitCode code = ExitCode::ok;
  const char* meaning = "";
};
std::span<const ExitCodeMeaning> exit_code_meanings();

std::string overview_text(const Terminal&);
std::string help_text(const CLI::App&, const Verb&, const Terminal&);

}  // namespace sextant
