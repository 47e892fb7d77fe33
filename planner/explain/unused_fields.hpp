// Fields of a plan that were set and change nothing about it, and why: a person who sets one should be told.
#pragma once

#include <string>
#include <vector>

#include "core/model/model_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// "field: reason", in the order of the plan key.
std::vector<std::string> unused_fields(const ParallelPlan&, const ModelSpec&, const StackSpec&);

}  // namespace sextant
