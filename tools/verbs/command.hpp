// The whole command, callable from tests: arguments in, exit code out. Every error ends here: one clear
// message on stderr (what, where, what to try) and the documented exit code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "tools/terminal/terminal.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

// `arguments` without the program's name.
ExitCode run_command(const std::vector<std::string>& arguments, Terminal);

// All verbs with all their options as one CLI11 app: what parsing, --help and completion read.
struct CommandLine {
  CLI::App app;
  std::vector<CLI::App*> apps;  // beside verbs()
  std::vector<Run> runs;
  CommonOptions common;
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;
};

}  // namespace sextant
