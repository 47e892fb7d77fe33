// What saving and failures leave of a run, in the answers of `plan` and `simulate`: text and JSON.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/base/units.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/answers/goodput.hpp"
#include "planner/lowering/job.hpp"

namespace sextant {

// "checkpoints: 5.67 TB in ..."; empty where storage or failures are not stated.
std::string goodput_text(const Job&, const ParallelPlan&, Seconds step, SaveKind);

// "checkpoint_GB", and "goodput": an object, or null where storage or failures are not stated.
void add_goodput(nlohmann::ordered_json&, const Job&, const ParallelPlan&, Seconds step, SaveKind);

}  // namespace sextant
