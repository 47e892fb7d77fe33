// A run of `sextant run` beyond each of its layouts: what it begins with, and how a layout of it is trained.
#pragma once

#include <optional>
#include <string>

#include "profiler/traced_steps.hpp"
#include "runtime/training/training_run.hpp"
#include "tools/adaptation/adapt_options.hpp"
#include "tools/adaptation/adaptive_run.hpp"
#include "tools/adaptation/decision_log.hpp"
#include "tools/inputs/run_checkpoints.hpp"
#include "tools/inputs/run_data.hpp"
#include "tools/inputs/run_options.hpp"
#include "tools/inputs/running.hpp"
#include "tools/inputs/verb.hpp"
#include "tools/inputs/weights.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/verbs/step_log.hpp"

namespace sextant {

// What a run begins with: nothing, or what the run so far has left.
struct RunStart {
  const Checkpoint* from = nullptr;       // null: with step 0
  bool init_given = false;                // on this command line, not by the run so far
  bool model_given = false;               // --model
  bool planned = false;                   // the plan was searched for here
  std::optional<RunFolder::OwnPlan> own;  // the plan of the run so far, where no other was given
  AdoptedOptions adopted;
  std::optional<InitialWeights> initial;  // of --init; nothing with a checkpoint
};

struct RunJob {
  Session& session;
  const RunVerbOptions& options;
  const AdaptOptions& adapt;
  const InterruptGuard& interrupt;
  RunFolder& folder;
  StepLog& log;
  const RunData& data;
  const TracedSteps* traced;  // null: operations are timed by events
  std::string same = {};      // what all ranks must have been asked alike
};

// What RunJob::same says of these.
std::string same_of_ranks(const RunVerbOptions&, const RunData&);

// A line on stderr.
void warn_of_run(const Terminal&, const std::string& what);

// How a layout of the run is trained; `first`: the one that begins it. What is captured outlives the training.
TrainingRun training_of(const RunJob&, RunStart&, const Runnable& layout, bool first);
AdaptiveRun::Hooks hooks_of(const RunJob&, RunStart&, DecisionLog&);

}  // namespace sextant
