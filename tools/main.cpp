// The command `sextant`. Everything is in run_command(), which tests call as well.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string_view>

#include <unistd.h>

#include "tools/verbs/command.hpp"

namespace {

// Threads of a matrix product that wait for one another shall sleep instead of spinning: where other processes want the cores,
// too, they spin for those that cannot run, and a step takes many times as long. The OpenMP library reads its policy while it
// is loaded, so the program begins once more. What the user has set stays.
void wait_asleep(int argc, char** argv) {
  const std::string_view verb = argc > 1 ? argv[1] : "";
  if ((verb != "run" && verb != "profile") || std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT"))
    return;
  if (::setenv("OMP_WAIT_POLICY", "passive", 0) == 0) ::execv("/proc/self/exe", argv);  // else as it is
}

// What unwinding takes when memory is out: the destructor of a JSON value allocates, and may not throw.
std::atomic<char*> reserve;  // several threads may be without memory at once
[[noreturn]] void out_of_memory() {
  delete[] reserve.exchange(nullptr);
  throw std::bad_alloc();
}

}  // namespace

int main(int argc, char** argv) {
  wait_asleep(argc, argv);
  std::signal(SIGXFSZ, SIG_IGN);             // ulimit -f: writing fails with a message instead
  constexpr std::size_t kReserve = 1 << 20;  // bytes
  reserve = new char[kReserve];
  std::set_new_handler(out_of_memory);
  std::ios::sync_with_stdio(false);
  return static_cast<int>(sextant::run_command({argv + 1, argv + argc}, sextant::detect_terminal()));
}
