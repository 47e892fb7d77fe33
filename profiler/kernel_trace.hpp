// Records when kernels, copies and fills run on this process's GPUs, by CUPTI's activity records, and for which tag.
// One trace at a time: CUPTI serves a process, not a caller.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "profiler/activity_join.hpp"

namespace sextant {

// Why kernels cannot be traced here; empty when they can.
std::string kernel_trace_missing();
std::string kernel_trace_library();  // "CUPTI 13.0.1"; empty when it is missing

class KernelTrace {
 public:
  KernelTrace();  // begins to record; throws BackendError with the reason when it cannot
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // What this thread enqueues from here to end() is for `tag`. Threads that a library keeps of its own (NCCL's, for
  // calls that do not block) are not seen: their work stays untagged.
  void begin(std::uint64_t tag);
  void end();
  std::uint64_t now_ns() const;  // on the clock of the records

  // What has run for the tags first..last; the caller has waited for it to end. Forgets them.
  std::map<std::uint64_t, TaggedTime> take(std::uint64_t first, std::uint64_t last);

  struct Losses {
    std::int64_t dropped = 0, untimed = 0,
                 untagged = 0;  // records that CUPTI had no room for; see ActivityJoin
  };
  Losses losses() const;
};

}  // namespace sextant
