// A timeline as Chrome trace JSON, which Perfetto opens: one process per stage, one thread per lane, flow arrows along
// transfers between stages, and a counter per memory category.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"

namespace sextant {

// `first_process` lets a measured timeline stand behind a predicted one in the same file.
struct TraceOptions {
  std::string prefix = "stage";  // of the process names
  int first_process = 0;
  bool memory = true;  // needs a graph lowered with operands
};

// The events alone, comma separated, to be put inside {"traceEvents":[ ... ]}.
std::string trace_events(const ExecutionGraph&, const Timeline&, const TraceOptions& = {});

// A part of the step that no operation shows.
struct TracePart {
  std::string_view name;
  double seconds = 0;
};

// A process of its own called "step": one slice for the operations, up to the end of the timeline, and one for every
// part that is longer than nothing, end to end behind it.
std::string trace_step(const Timeline&, std::span<const TracePart> behind, int process);

// Writes {"traceEvents":[...]} to `path`, compressed when it ends in .gz. Nothing is left behind on failure.
void write_trace(const std::filesystem::path&, const std::string& events);

}  // namespace sextant
