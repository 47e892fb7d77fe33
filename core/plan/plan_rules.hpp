// Is a plan lawful, asked by the hundred thousand? The key of its first problem (validate, core/plan/parallel_plan.hpp) without
// the texts; model and training are known to be valid.
#pragma once

#include <string_view>

#include "core/plan/parallel_plan.hpp"

namespace sextant {

// The key of a problem that replicas of equally many micro-batches do not divide the batch.
inline constexpr std::string_view kBatchOfReplicas = "micro_batch * dp";

// Empty when there is none.
std::string_view broken_rule(const ParallelPlan&, const ModelSpec&, const TrainingSpec&);

}  // namespace sextant
