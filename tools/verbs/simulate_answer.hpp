// What `sextant simulate` knows of a layout, and how it answers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "core/base/units.hpp"
#include "core/timeline/breakdown.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/inputs/goodput_options.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/verbs/simulate_events.hpp"

namespace sextant {

struct SimulateVerbOptions {
  QuestionOptions question;
  GoodputOptions goodput;
  std::string layout;  // the positional one
  std::string tokens, trace, output;
  EventsOptions events;
};

struct SimulatedLayout {
  Prediction prediction;
  Breakdown split;
  MemoryEstimate memory;
  double beyond_graph_s = 0;                        // stragglers and fixed host time of the step
  double host_s = 0;                                // the fixed host time alone
  Seconds jitter;                                   // what it adds to the step
  std::optional<CalibratedUncertainty> calibrated;  // under --calibration
  std::size_t ops = 0;
  // What `sextant run` allocates on the device of a rank of the fullest stage; nothing of another stack's plan, or of one
  // that the runtime cannot run.
  std::optional<Bytes> runtime;
};

// A layout and all that its answer is made of.
struct SimulateAnswer {
  Session& session;
  const SimulateVerbOptions& options;
  const Planning& planning;
  const Job& job;
  const SimulatedLayout& simulated;
  std::optional<Rejection> rejection;  // it does not fit
  const Question& question() const { return planning.question(); }
  const ParallelPlan& plan() const { return *question().plan; }
};

// With --json or as text.
void print_simulated(const SimulateAnswer&);

}  // namespace sextant
