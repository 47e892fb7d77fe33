// The keys of a config.json that do not state the shape we count: some make another model of it, most are bookkeeping.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/error.hpp"
#include "core/model/hugging_face_families.hpp"

namespace sextant {

// One problem for each key that asks for something no ModelSpec can say (a window, experts, scaled residuals), unless its
// value asks for nothing. `config` is an object.
std::vector<Problem> other_architecture(const nlohmann::json& config);

// What a reader of the plan should know: weights that are quantized, and keys that nobody here knows, the family (null: GPT-2's
// or BLOOM's) neither.
std::vector<std::string> config_notes(const nlohmann::json& config, const ModelFamily*);

}  // namespace sextant
