// The options that verbs share, each described once: flag, kind of value, text, unit, bounds. The kind of
// value (metavar) is also what shell completion goes by. Numbers are checked against their bounds here, with
// messages in the words of this project rather than of the command-line library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace sextant {

struct OptionRecord {
  const char* flag;     // "--seq-len", or "-o,--output"
  const char* metavar;  // "N", "FILE", "MODEL", "auto|always|never"
  const char* text;
  const char* unit = "";
  double min = 0, max = 0;  // of a number
  // What a word that is none of a|b|c is called here, as a hint; empty: not known.
  std::string (*otherwise)(const std::string& word) = nullptr;
};

// The value that `target` has when it is added is the default that --help prints.
void add_number(CLI::App&, const OptionRecord&, int& target);
void add_number(CLI::App&, const OptionRecord&, double& target);
void add_text(CLI::App&, const OptionRecord&, std::string& target);  // with "a|b|c" as metavar: one of them
void add_list(CLI::App&, const OptionRecord&, std::vector<std::string>& target);  // repeatable
void add_flag(CLI::App&, const OptionRecord&, bool& target);

// Words of a metavar such as "auto|always|never"; empty for other metavars.
std::vector<std::string> choices(const std::string& metavar);

// What every verb has.
struct CommonOptions {
  bool json = false;
  bool wide = false;
  std::string color = "auto";
  std::string presets;  // folder; empty = found from the executable
};
void add_common_options(CLI::App&, CommonOptions&);

}  // namespace sextant
