// Which numbers does a log settle by arithmetic? Consumed samples of each step are the global batch, tokens/s over tokens/s of a GPU the
// number of GPUs, tokens over samples the sequence length, a pipeline rank in the tag of a step that the last stage prints the number
// of stages. Each is known within what its rounding leaves open; what the log does not print otherwise is filled from it, and what is
// stated is compared with it. Used by planner/calibration/run_log, its readers and log_to_run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/calibration/run_log.hpp"

namespace sextant {

// What a printed number may have been: `low` to `high`.
struct PrintedRange {
  double low = 0, high = 0;
};

// The number behind `label` where it is above 0, printed with `digits` significant ones ("11.5K" with three: 11,450 to 11,550).
std::optional<PrintedRange> range_after(std::string_view line, std::string_view label, int digits);

PrintedRange product(PrintedRange, PrintedRange);
PrintedRange quotient(PrintedRange, PrintedRange);

// Notes that `column` lies in the range, as line `at` says. Ranges of several lines narrow each other; those that exclude each other
// (a batch that grows) leave what both span.
void settle(RunLog&, const std::string& column, PrintedRange, std::string by, int at);

// Once all lines are read: what only one whole number fits, and no line states, is said.
void say_settled(RunLog&);

// The sequence length that settles best: of the whole numbers in its range the one that most twos divide.
std::optional<int> settled_seq_len(const RunLog&);

// Where what is stated is not in its range.
std::vector<Problem> against_settled(const RunLog&, const TrainingSpec&, const ParallelPlan&);

}  // namespace sextant
