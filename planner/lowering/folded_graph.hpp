// A step as the simulator needs it and no more: operations of one lane that nothing else waits for in between are one,
// whose work is a run of works. Simulated and interfering alike it takes the time of the whole graph; names, buckets and
// micro-batches of its operations are lost.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/graph/execution_graph.hpp"

namespace sextant {

inline constexpr WorkId kFirstRun = 0x8000;  // from here on a WorkId names a run

// `last` after `before`; either is a work or a run.
struct WorkRun {
  WorkId before = 0, last = 0;
};

// An op without its names, which nothing but a pass reads.
struct TimedOp {
  WorkId work = 0;
  std::array<LaneId, 2> lanes{kNoLane, kNoLane};  // as Op's
  std::uint16_t dep_count = 0;  // what it waits for stands behind what those before it wait for
  friend bool operator==(const TimedOp&, const TimedOp&) = default;
};

struct FoldedGraph {
  std::vector<Work> works;
  std::vector<WorkRun> runs;
  std::size_t lanes = 0;
  std::vector<TimedOp> ops;
  std::vector<OpId> deps;
};

}  // namespace sextant
