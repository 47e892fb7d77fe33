// Which measured times are inconsistent with their own table? A run that hung for a moment, or was written down wrongly, stands among others
// that differ from it in next to nothing; no model is asked. Scores are printed with such rows, and without them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/runs/run_row.hpp"

namespace sextant {

// Two or more runs of the same group are the same but for one doubling of the micro-batch or for the stage of ZeRO; their times lie
// within 15 % of each other, and the row's is more than 1.3 times each of theirs, or less than each by as much.
struct InconsistentTime {
  std::size_t row = 0;
  std::vector<std::size_t> neighbours;
};
std::vector<InconsistentTime> inconsistent_times(std::span<const RunRow>);

// The rows without those times: what else they say is kept.
std::vector<RunRow> without(std::span<const RunRow>, std::span<const InconsistentTime>);

}  // namespace sextant
