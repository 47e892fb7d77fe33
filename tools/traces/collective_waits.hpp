// How long did a collective wait for other ranks, and how long did it move bytes? Its kernel runs through both. Of one collective seen
// by several ranks the shortest kernel is the transfer: it belongs to the rank that came last. That holds whatever the clocks of the
// ranks show, as only durations count.
#pragma once

#include <string>
#include <vector>

#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/trace_steps.hpp"

namespace sextant {

struct RankSteps {
  RankTrace trace;
  std::vector<StepWindow> steps;
};

// Sets `wait_ns` of what is matched: the n-th of its kind in a step of its group, where all ranks given had as many. Transfers between
// stages that nothing matches are held to the shortest of as many bytes in the same trace, where it says how many. `remarks` tells what could not be matched.
void find_waits(std::vector<RankSteps>&, std::vector<std::string>& remarks);

}  // namespace sextant
