// Where the step that a user measures goes: what its graph takes by category, and what comes beside it.
#pragma once

#include <string>
#include <vector>

#include "core/timeline/breakdown.hpp"

namespace sextant {

struct TimeRow {
  std::string what;    // "exposed dp"
  double seconds = 0;  // mean over stages
  double share = 0;    // of the step, [0, 1]
};
// One row for each category in its order, one for what jitter adds where it does, then stragglers and host: they sum to
// the step.
std::vector<TimeRow> time_rows(const TimeSplit& mean, Seconds step, Seconds jitter = Seconds(0));

}  // namespace sextant
