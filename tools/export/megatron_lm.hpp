// What Megatron-Core has options for, whichever of its programs states them: the command line of Megatron-LM, the classes of
// Megatron-Bridge.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/plan/plan_file.hpp"
#include "tools/export/target_features.hpp"

namespace sextant {

inline constexpr AxisOrder kMegatronOrder = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
inline constexpr AxisOrder kMegatronPipelineInside = {Axis::tp, Axis::cp, Axis::pp,
                                                      Axis::dp};  // use_tp_pp_dp_mapping

TargetFeatures megatron_features(const std::string& version, const StackCapabilities&);
std::vector<Inexpressible> megatron_rules(const PlanFile&, const std::string& version);

// CUDA_DEVICE_MAX_CONNECTIONS, where the plan asks for one.
std::vector<std::pair<std::string, std::string>> megatron_environment(const PlanFile&);

inline bool megatron_sharded(const ParallelPlan& p) { return p.zero_stage > 0; }
inline bool megatron_fsdp(const ParallelPlan& p) { return p.zero_stage >= 2; }

}  // namespace sextant
