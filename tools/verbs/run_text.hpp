// What `sextant run` says when it begins, and what it answers when it has ended.
#pragma once

#include "profiler/compare.hpp"
#include "tools/adaptation/decision_log.hpp"
#include "tools/verbs/run_job.hpp"

namespace sextant {

// On the first rank, when all have their state.
void tell_start(const RunJob&, const RunStart&, const Runnable&);

// The end of a run that has trained: its last layout, and its last step as predicted and as measured.
struct RunEnd {
  const Runnable& runnable;
  const RunResult& result;
  const TimelineComparison& comparison;
};
void answer_in_json(const RunJob&, const RunEnd&, const DecisionLog&);
// `planned`: the plan was searched for by this command.
void answer_in_text(const RunJob&, const RunEnd&, bool planned);
// Of one that has not done a step.
void answer_without_steps(const RunJob&, const Runnable&, const RunResult&);

}  // namespace sextant
