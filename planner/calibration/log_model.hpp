// Is the model that is named the one whose shape a log states? Grouped queries, width of a head, gated MLP and vocabulary, as Megatron-LM's
// arguments and nanotron's configuration print them. Used by planner/calibration/run_log and log_to_run alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/calibration/run_log.hpp"

namespace sextant {

// An argument or key of a configuration that states the model's shape.
void read_model_setting(std::string_view key, std::string_view value, RunLog&);

// " > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)"
void read_padded_vocabulary(std::string_view line, RunLog&);

// What of the log's shape is another model's.
std::vector<Problem> of_another_shape(const RunLog&, const ModelSpec&, const ParallelPlan&);

// What one shape has in several forms is the log's: whether the head shares the embedding's matrix. Notes say what changed, and what is
// priced as the model has it.
std::vector<std::string> take_forms(const RunLog&, ModelSpec&);

}  // namespace sextant
