// Is a plan lawful, asked by the hundred thousand? The key of its first problem (validate, core/plan/parallel_plan.hpp) without
// the texts; model and training are known to be valid.
#pragma once

#include <string_view>

#include "core/plan/parallel_plan.hpp"

namespace sextant {

// Empty when there is none.
std::string_view broken_rule(const ParallelPlan&, const ModelSpec&, const TrainingSpec&);

}  // namespace sextant
