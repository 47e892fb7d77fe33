// Which steps of a log can be measured? Reads the lines of steps one by one: marks those that warm up (the first of a run,
// and of one that was started again behind it), leaves out what cannot be read and remembers its line. Used by
// planner/calibration/run_log alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "planner/calibration/run_log.hpp"

namespace sextant {

// How the programs of one format print the value that counts.
struct StepFormat {
  std::string_view label;     // stands before it
  std::string_view expected;  // in words, with the unit
  double scale = 1;           // of LoggedStep::value over what is printed
  StepValue value = StepValue::seconds;
};

class StepLines {
 public:
  StepLines(RunLog& log, const StepFormat& format) : log_(log), format_(format) {}

  // What stands before the value of a step.
  std::string_view label() const { return format_.label; }

  // The program says that it starts: the next step that is logged warms up.
  void starts() { fresh_ = true; }

  // Line `at` is of a step, whose `number` may not be stated; every rank may print it. Throws ConfigError on a step of no
  // time.
  void read(std::string_view line, int at, std::optional<std::int64_t> number);

  // Line `at` says what was consumed up to step `number`: what lies between two of them settles batch and sequence length.
  void consumed(std::int64_t number, double samples, std::optional<double> tokens, int at);

 private:
  Problem problem(int at, std::string found, std::string hint) const;
  void leave_out(int at, std::string found);

  RunLog& log_;
  StepFormat format_;
  bool fresh_ = true;
  struct Consumed {
    std::int64_t number;
    double samples;
    std::optional<double> tokens;
  };
  std::optional<Consumed> consumed_;
  std::optional<std::int64_t> first_, last_;  // numbers: of this run's first step, and of the line before
};

// The step of a line such as "iteration   3/ 50": the number between `label` and "/ TOTAL".
std::optional<std::int64_t> step_of_total(std::string_view line, std::string_view label);

}  // namespace sextant
