// What asks a command to end: a search answers with the best so far, a run saves. Schedulers, mpirun and timeout ask more than
// once, and nothing is lost by it; only a person's second Ctrl-C ends the process at once.
#pragma once

#include <atomic>

namespace sextant {

// From its construction SIGINT, SIGTERM, SIGUSR1 (which mpirun and Slurm pass on) and SIGHUP (the terminal has gone; unless
// it was ignored, as nohup does) set stopped() instead of ending the process. One at a time. When it goes the signals are what
// they were before; but once the end was asked for, further requests other than Ctrl-C stay without effect until the process
// is over.
class InterruptGuard {
 public:
  // `told`: a line for stderr at the first Ctrl-C, static; null: none.
  explicit InterruptGuard(const char* told = nullptr);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  const std::atomic<bool>& stopped() const;
  int signal() const;  // which was the first; 0: none
};

}  // namespace sextant
