// `sextant run --model ... --cluster ...` without a plan file: the plan that `sextant plan` would recommend.
#pragma once

#include "core/plan/plan_file.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

// Throws ConfigError when nothing fits. The stack is the embedded runtime, unless another is stated.
PlanFile first_plan(Session&, QuestionOptions);

}  // namespace sextant
