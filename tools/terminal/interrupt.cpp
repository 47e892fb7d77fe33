#include "tools/terminal/interrupt.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <unistd.h>

namespace sextant {

namespace {
std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};
std::atomic<const char*> line_for_ctrl_c{nullptr};
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
std::array<struct sigaction, kSignals.size()> former_actions;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
                  std::atomic<const char*>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

extern "C" void on_signal(int number) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, number);
  stop_requested.store(true);
  if (number != SIGINT) return;
  std::signal(SIGINT, SIG_DFL);  // the second one ends the process
  const int error = errno;
  if (const char* const line = line_for_ctrl_c.load()) (void)!::write(STDERR_FILENO, line, std::strlen(line));
  errno = error;
}
}  // namespace

InterruptGuard::InterruptGuard(const char* told) {
  stop_requested.store(false);
  stop_signal.store(0);
  line_for_ctrl_c.store(told);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &former_actions[i]);
    if (kSignals[i] != SIGHUP || former_actions[i].sa_handler != SIG_IGN)
      ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i)
    if (kSignals[i] == SIGINT || !stop_requested.load())
      ::sigaction(kSignals[i], &former_actions[i], nullptr);
}

const std::atomic<bool>& InterruptGuard::stopped() const { return stop_requested; }
int InterruptGuard::signal() const { return stop_signal; }

}  // namespace sextant
