// A step as the simulator needs it and no more: operations of one lane that nothing else waits for in between are one,
// whose work is a run of works. Simulated and interfering alike it takes the time of the whole graph; names, buckets and
// micro-batches of its operations are lost.
#pragma once

#include <vector>

#include "core/execution_graph.hpp"

namespace sextant {

inline constexpr WorkId kFirstRun = 0x8000;  // from here on a WorkId names a run

// `last` after `before`; either is a work or a run.
struct WorkRun {
  WorkId before = 0, last = 0;
};

struct FoldedGraph : ExecutionGraph {
  std::vector<WorkRun> runs;
};

}  // namespace sextant
