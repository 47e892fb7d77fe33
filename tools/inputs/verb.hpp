// What a verb of the command is: it describes itself, adds its options to a CLI11 app and hands back what to run once they are
// parsed. Its examples are executed by the tests.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"
#include "tools/inputs/options.hpp"
#include "tools/terminal/terminal.hpp"

namespace sextant {

struct Session {
  Terminal terminal;
  CommonOptions common;
  std::vector<std::string> arguments;     // of the command, as given: for provenance
  std::vector<std::string> former = {};   // which of them are options of version 0.1, and what is written now
  std::filesystem::path presets() const;  // throws ConfigError when there are none
};

using Run = std::function<ExitCode(Session&)>;

struct Example {
  std::string what;
  std::string command;
};

struct Verb {
  std::string name;
  std::string summary;      // one line
  std::string description;  // some sentences, wrapped by --help
  std::vector<Example> examples;
  std::function<Run(CLI::App&)> define;
};

// The answer of --json: {"schema": "sextant.<verb>/1", ...}, two-space indent, invalid UTF-8 replaced.
void print_json(Session&, const std::string& verb, const nlohmann::ordered_json& fields);

}  // namespace sextant
