// What `sextant validate` says of its predictions to a reader: scores per source, runs that nobody measured, and rows
// that could not be predicted.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/runs/run_row.hpp"
#include "planner/calibration/held_out.hpp"
#include "planner/validation/inconsistent_times.hpp"
#include "planner/validation/validate.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

// Step times, then the choice of a layout and memory; with several sources a last line of all.
void print_scores(Session&, const std::vector<SourceScore>&);
// Where no fit saw the runs: below the scores per source. `rows`: what was predicted.
void print_held_out(Session&, const HeldOut&, std::span<const RunRow> rows);
// "one measured time is inconsistent with runs ...: nt-0348, 1.02 s beside 0.527 and 0.531 s; without it "; empty where none is.
std::string inconsistent_text(std::span<const RunRow>, std::span<const InconsistentTime>);
// The first runs without a measured time or memory: predictions, not comparisons.
void print_unmeasured(Session&, const std::vector<RunRow>&, const std::vector<RunPrediction>&);
// To stderr: one bad row does not hide the others. The first are told, all are counted.
void tell_unpredicted(Session&, const std::vector<RunRow>&, const std::vector<RunPrediction>&);

}  // namespace sextant
