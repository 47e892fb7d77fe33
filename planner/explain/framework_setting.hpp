// What the framework must be told for a plan to run as it is simulated, beyond what the fields of the plan say.
#pragma once

#include <string>

#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

// "microbatch_group_size_per_vp_stage ... 8: ..." where an interleaved schedule's groups are not pp micro-batches; else empty.
std::string framework_setting(const ParallelPlan&, const TrainingSpec&);

}  // namespace sextant
