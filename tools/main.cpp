// The command `sextant`. Everything is in run_command(), which tests call as well.
#include <csignal>
#include <cstdlib>
#include <iostream>

#include "tools/command.hpp"

// Threads of a matrix product that wait for one another sleep instead of spinning: where other processes want the cores, too,
// they spin for those that cannot run, and a step takes two to four times as long. The OpenMP library reads its policy while
// it is loaded, which is before main() and after this. What the user has set stays.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {
void wait_asleep() { ::setenv("OMP_WAIT_POLICY", "passive", 0); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = &wait_asleep;
}  // namespace
#endif

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // ulimit -f: writing fails with a message instead
  std::ios::sync_with_stdio(false);
  return static_cast<int>(sextant::run_command({argv + 1, argv + argc}, sextant::detect_terminal()));
}
