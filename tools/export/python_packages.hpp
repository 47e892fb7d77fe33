// Which frameworks does a python have? It is asked once, for all packages.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace sextant {

struct CommandAnswer {
  int code = -1;  // exit code; -1: it ended by a signal
  std::string text;
};
// By the shell, standard output and error together. Throws BackendError where it cannot be started.
CommandAnswer ask_command(const std::string& command);

// SEXTANT_PYTHON, or python3.
std::string python_asked();

struct PythonPackages {
  std::string program, version;                 // path and "3.12.1"; empty: there is no such python
  std::map<std::string, std::string> versions;  // of those that are installed
};
PythonPackages python_packages(const std::vector<std::string>& names);

}  // namespace sextant
