#include "tools/interrupt.hpp"

#include <csignal>

namespace sextant {

namespace {
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

extern "C" void on_signal(int number) {
  stop_requested.store(true);
  std::signal(number, SIG_DFL);  // the second one ends the process
}
}  // namespace

InterruptGuard::InterruptGuard() {
  stop_requested.store(false);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

const std::atomic<bool>& InterruptGuard::stopped() const { return stop_requested; }

}  // namespace sextant
