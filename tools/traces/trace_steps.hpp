// The steps of a trace as its device saw them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/traces/gpu_trace.hpp"

namespace sextant {

struct StepWindow {
  std::int64_t number = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
  double seconds() const { return 1e-9 * static_cast<double>(end_ns - begin_ns); }
};

// Where the host marked steps: from the first activity that a step launched to the first of the next one, as the device runs behind the
// host; the last step, which nothing follows, takes at least as long as its mark. Without marks: from the end of one optimizer to the
// end of the next. Without either: the whole trace as one. `remarks` tells what was taken.
// Throws ConfigError where the marked steps launched nothing.
std::vector<StepWindow> step_windows(const RankTrace&, std::vector<std::string>& remarks);

// From the first activity to the end of the last.
StepWindow whole_window(const RankTrace&);

}  // namespace sextant
