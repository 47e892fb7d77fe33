// Times the operations of a run by the kernels they have launched: a KernelTrace as the OpTimer of a run. Where an
// operation has launched none on its thread (the host's updates, collectives of a library's own threads), the span
// between its events stays.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "profiler/kernel_trace.hpp"
#include "runtime/devices/op_timer.hpp"

namespace sextant {

class TracedSteps {
 public:
  explicit TracedSteps(int ranks);  // of the world; those of this process are used
  ~TracedSteps();
  TracedSteps(const TracedSteps&) = delete;

  const OpTimer& timer() const { return timer_; }
  KernelTrace::Losses losses() const { return trace_.losses(); }
  // Operations whose spans came from kernels, over all steps that were asked for.
  std::int64_t traced() const { return traced_; }

 private:
  struct Rank {
    std::uint32_t step = 0;
    std::uint64_t begin_ns = 0;
  };
  KernelTrace trace_;
  std::vector<Rank> ranks_;  // each touched by its own thread only
  std::atomic<std::int64_t> traced_{0};
  OpTimer timer_;
};

}  // namespace sextant
