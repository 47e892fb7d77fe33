// How a Hugging Face config.json states rotary positions.
#pragma once

#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/model/hugging_face_families.hpp"
#include "core/model/model_spec.hpp"

namespace sextant {

// rope_scaling of v4 ({"rope_type" or "type": ..., "factor": ...}) or rope_parameters of v5, which holds
// rope_theta as well. "default" means no scaling. What is wrong is failed on `io`; a scaling that is not known, or lacks
// numbers, is read all the same and marked (rope_not_run).
void read_rope(JsonReader& io, const nlohmann::json& config, const ModelFamily& family, ModelSpec& m);

}  // namespace sextant
