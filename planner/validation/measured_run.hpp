// A run that was timed, with everything about it decided: what calibration fits to. It comes from a row of a CSV file
// of runs, or from a log and the question that describes it (planner/calibration/run_log.hpp).
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/runs/framework_map.hpp"
#include "core/runs/run_row.hpp"
#include "planner/simulation/residual.hpp"

namespace sextant {

struct MeasuredRun {
  std::string id, source;
  ResolvedRun run;
  Seconds step;
  std::optional<double> peak_memory_GiB = {};  // what run.memory_kind counts
  std::string at = {};                         // where it stands: "runs.csv:3"
  std::vector<int> peak_stages = {};  // pipeline stages among whose peaks that is the largest; empty: all
};

LayoutPoint layout_point(const ResolvedRun&);

// The rows with a measured time whose layout is lawful.
std::vector<MeasuredRun> measured_runs(std::span<const RunRow>, const FrameworkMap&,
                                       const std::filesystem::path& preset_dir);

// Rows of one source share their errors: at most `most` of each, evenly picked, so that none outvotes the others.
std::vector<MeasuredRun> balanced(std::span<const MeasuredRun>, std::size_t most = 60);

}  // namespace sextant
