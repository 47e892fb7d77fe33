// The command `sextant`. Everything is in run_command(), which tests call as well.
#include <csignal>
#include <iostream>

#include "tools/command.hpp"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // ulimit -f: writing fails with a message instead
  std::ios::sync_with_stdio(false);
  return static_cast<int>(sextant::run_command({argv + 1, argv + argc}, sextant::detect_terminal()));
}
