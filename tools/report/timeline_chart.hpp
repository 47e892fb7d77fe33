// A step as rows of blocks: what each stage's compute lane does micro-batch by micro-batch, and beneath it what runs beside
// (reductions and gathers of data parallelism, copies from and to the host). Operations of one slot are one block, so that a step
// of some hundred thousand operations is a page; collectives of TP and CP lie inside the blocks. Perfetto shows every operation
// (simulate --trace).
#pragma once

#include <string>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"
#include "tools/report/charts.hpp"

namespace sextant {

struct ShownTimeline {
  std::string name;  // "predicted"; empty where there is one alone
  const Timeline* timeline = nullptr;
};
// Of one graph, row under row. Each row's "blocks" are five numbers a block: what passed since the end of the block before, how long
// it lasts (both in millionths of "step_s"), what it does (a place in "kinds"), micro-batch and model chunk (-1: of none).
Chart timeline_chart(const std::string& about, const ExecutionGraph&, const std::vector<ShownTimeline>&);

}  // namespace sextant
