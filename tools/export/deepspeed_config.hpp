// ds_config.json of a plan, and what DeepSpeed's engine has no key for: shared by the targets that start DeepSpeed.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "core/plan/plan_file.hpp"
#include "tools/export/target_features.hpp"

namespace sextant {

// Every key whose default would differ or has changed between releases is written: batch, formats, ZeRO, buckets, offload,
// recomputation on the host, tensor parallelism. Degrees of a pipeline have no key.
nlohmann::ordered_json deepspeed_config(const PlanFile&);

TargetFeatures deepspeed_engine_features(const StackCapabilities&);

// What depends on several fields together: which optimizer wrapper the engine takes, and when that reduces gradients.
std::vector<Inexpressible> deepspeed_engine_rules(const PlanFile&);

}  // namespace sextant
