// How many parameters does a log say that its model has, and can the model that was named be it? torchtitan prints the
// number, nanotron three digits of it, Megatron-LM billions with two decimals or each rank's own. A vocabulary that was
// padded and an output that shares the embedding's matrix or does not are the same model. Used by planner/calibration/run_log and
// planner/calibration/log_to_run alone.
#pragma once

#include <optional>
#include <string_view>

#include "planner/calibration/run_log.hpp"

namespace sextant {

// Line `at` of a log whose format is known.
void read_parameters(std::string_view line, int at, RunLog&);

// What is wrong when the log's model is another one. Nothing where the log does not say, or says it for some of the ranks
// of `plan` only.
std::optional<Problem> of_another_model(const RunLog&, const ModelSpec&, const ParallelPlan&);

}  // namespace sextant
