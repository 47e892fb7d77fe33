#include "tools/export/python_packages.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <sys/wait.h>

#include "core/base/error.hpp"
#include "tools/export/bash_text.hpp"

namespace sextant {

CommandAnswer ask_command(const std::string& command) {
  FILE* pipe = popen(("{ " + command + "; } 2>&1").c_str(), "r");
  if (!pipe) throw BackendError("no shell could be started");
  CommandAnswer answer;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe))
    answer.text.append(buffer.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) answer.code = WEXITSTATUS(status);
  return answer;
}

std::string python_asked() {
  const char* python = std::getenv("SEXTANT_PYTHON");
  return python && *python ? python : "python3";
}

PythonPackages python_packages(const std::vector<std::string>& names) {
  std::string script =
      "import importlib.metadata as m, platform, sys\nprint(sys.executable, platform.python_version(), "
      "sep='\\t')\n"
      "for name in sys.argv[1:]:\n try: print(name, m.version(name), sep='\\t')\n"
      " except m.PackageNotFoundError: pass\n";
  std::string command = bash_word(python_asked()) + " -c " + bash_word(script);
  for (const std::string& name : names) command += " " + bash_word(name);
  const CommandAnswer answer = ask_command(command);
  PythonPackages found;
  if (answer.code != 0) return found;
  std::istringstream lines(answer.text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) continue;
    const std::string name = line.substr(0, tab), version = line.substr(tab + 1);
    if (found.program.empty()) {
      found.program = name;
      found.version = version;
    } else {
      found.versions[name] = version;
    }
  }
  return found;
}

}  // namespace sextant
