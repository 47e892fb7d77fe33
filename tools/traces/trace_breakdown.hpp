// Where did the time of a measured step go? One rank's device, instant by instant: compute by class, else collectives that nothing
// hides, else copies, else idle.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/trace_steps.hpp"

namespace sextant {

// Collectives of one kind and process group.
struct CollectiveTime {
  std::uint32_t group = 0;  // of RankTrace::groups
  CollectiveName collective = CollectiveName::unnamed;
  std::size_t count = 0;      // that began in the step
  double total_s = 0;         // while one of them moved bytes
  double exposed_s = 0;       // of that, while nothing computed and bytes moved
  double exposed_wait_s = 0;  // of that, while nothing computed and it waited for other ranks
};

// Seconds of one rank and step. compute_s, the exposed parts, copies and idle times sum to step_s.
struct StepTime {
  double step_s = 0;
  std::array<double, kComputeClasses> compute_s{};  // by KernelClass; of kernels at once each has its share
  std::vector<CollectiveTime> collectives;
  double communication_s = 0;                 // while any collective ran
  double host_copy_s = 0, device_copy_s = 0;  // that neither compute nor collectives hide
  double host_idle_s = 0;                     // idle: the host had not launched what ran next
  double wait_idle_s = 0;  // idle all the same: what ran next waited for an event or a stream
  double computing_s() const;
  double exposed_s() const;  // communication that no compute hides, waits included
  double waiting_s() const;  // of that, the waits
  double idle_s() const { return host_idle_s + wait_idle_s; }
};

StepTime step_time(const RankTrace&, const StepWindow&);

}  // namespace sextant
