// What would a bash script start? Its commands with all variables and arrays put in, without running anything: assignments,
// conditions on variables, the first round of loops, functions and sourced files are followed; the output of commands and files of
// the machine are not known.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tools/import/shell_variables.hpp"

namespace sextant {

struct ShellCommand {
  std::vector<std::string>
      words;     // the program first; places that are not known as in tools/import/shell_variables.hpp
  int line = 0;  // of its file
};

struct ShellScript {
  std::vector<ShellCommand> commands;  // in order, without those that only set, print or test
  std::map<std::string, std::vector<std::string>>
      variables;                                 // as they are in the end; a plain one has one value
  std::map<std::string, std::string> documents;  // files that here-documents write, by name
  std::vector<std::string> slurm;                // words of its #SBATCH lines
  std::vector<std::string> from_environment;     // variables that were taken from there
  std::vector<std::string> notes;                // conditions and loops that could not be followed
};

// `path` is what $0 and `source` go by. Never throws for what the script says; a sourced file that is missing is a note.
ShellScript read_shell_script(const std::string& text, const std::filesystem::path& path,
                              const ShellEnvironment&);

}  // namespace sextant
