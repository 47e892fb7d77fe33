// Who times operations better than events around them can: an event counts what lies between the end of the op before
// and the first kernel of this one as well. Told what a rank launches, on the thread that launches it; asked when the
// step is over. The calls of different ranks may overlap.
#pragma once

#include <functional>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"

namespace sextant {

struct OpTimer {
  std::function<void(int rank)> begin_step;  // from which its spans are measured
  std::function<void(int rank, OpId)> begin_launch;
  std::function<void()> end_launch;  // of what this thread has begun last
  // Replaces the spans of ops that it has timed. The rank has waited for the step's end.
  std::function<void(int rank, std::vector<Span>& by_op)> end_step;
};

}  // namespace sextant
