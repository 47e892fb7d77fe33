#include "tools/interrupt.hpp"

#include <csignal>

namespace sextant {

namespace {
std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

extern "C" void on_signal(int number) {
  stop_signal.store(number);
  stop_requested.store(true);
  std::signal(number, SIG_DFL);  // the second one ends the process
}
}  // namespace

InterruptGuard::InterruptGuard() {
  stop_requested.store(false);
  stop_signal.store(0);
  for (const int number : kSignals) std::signal(number, on_signal);
}

InterruptGuard::~InterruptGuard() {
  for (const int number : kSignals) std::signal(number, SIG_DFL);
}

const std::atomic<bool>& InterruptGuard::stopped() const { return stop_requested; }
int InterruptGuard::signal() const { return stop_signal; }

}  // namespace sextant
