// Predicted against measured, operation by operation: two timelines of the same graph joined by operation id and summed
// over classes ("attention forward", "grad_reduce"). Says which classes explain the difference of the step; knows nothing
// of how either timeline came about.
#pragma once

#include <string>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/breakdown.hpp"
#include "core/timeline/timeline.hpp"

namespace sextant {

struct ClassComparison {
  std::string operations;  // "mlp backward"
  std::size_t count = 0;   // over all stages
  bool compute_lane = false;
  double predicted_s = 0, measured_s = 0;  // busy seconds of a step, mean over stages
  double ratio() const { return predicted_s > 0 ? measured_s / predicted_s : 0; }
};

struct TimelineComparison {
  Breakdown predicted, measured;         // by category
  std::vector<ClassComparison> classes;  // largest difference first
  double step_ratio() const { return measured.step.v / predicted.step.v; }
};

TimelineComparison compare(const ExecutionGraph&, const Timeline& predicted, const Timeline& measured);

// "mlp backward", "tp_gather forward", "update".
std::string operation_class(const ExecutionGraph&, const Op&);

}  // namespace sextant
