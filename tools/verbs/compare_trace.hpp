// `sextant compare` over traces of other frameworks: read, checked against the plan, accounted for, shown.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/inputs/verb.hpp"
#include "tools/traces/step_parts.hpp"

namespace sextant {

struct TraceOptionsOfCompare {
  std::string plan;  // empty: nothing to compare with
  std::string profile;
  bool any_device = false;  // --allow-other-device
};

struct ComparedTrace {
  std::string path;  // as given; of several files the first and how many more
  int ranks = 0;     // of the plan, else of the trace; 0: not said
  TracedJob job;
  TracedAccount measured;
  std::optional<StepAccount> predicted;
};

// Is this a trace, or a folder of traces? A folder of `sextant run` is none.
bool is_trace(const std::filesystem::path&);

// What was given, by job: files together are the ranks of one, a folder is one of its own.
std::vector<std::vector<std::filesystem::path>> traced_jobs(const std::vector<std::string>& paths);

// Throws ConfigError on traces of another device or another number of ranks than the plan's, and as read_traces does.
ComparedTrace compare_trace(Session&, const std::vector<std::filesystem::path>& given,
                            const TraceOptionsOfCompare&);

nlohmann::ordered_json compared_trace_json(const ComparedTrace&);

// The measured step of each rank as events for Perfetto, comma separated: a process per rank, a thread per stream.
std::string measured_events(const ComparedTrace&, int first_process);

}  // namespace sextant
