// Ctrl-C asks a long search to stop and answer with the best so far; a second Ctrl-C ends the process.
#pragma once

#include <atomic>

namespace sextant {

// While it lives, the first SIGINT, SIGTERM or SIGUSR1 (which mpirun and Slurm pass on) sets stopped() instead of ending the
// process. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  const std::atomic<bool>& stopped() const;
  int signal() const;  // which it was; 0: none
};

}  // namespace sextant
