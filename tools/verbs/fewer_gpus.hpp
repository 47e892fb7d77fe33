// A part of the cluster that is faster than all of it: where GPUs are missing their number may divide badly, and where a
// node is slow all wait for it. Told beside the best layout.
#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "planner/answers/scale.hpp"
#include "tools/verbs/plan_answers.hpp"

namespace sextant {

// Searched for during half of the time that the search of all GPUs took, from a quarter of a second to two.
std::optional<ScalePoint> fewer_gpus(const Asking&, const SearchReport& of_all);

// A layout as in `ranked[]`, with `gpus`, `left_out_nodes[]` and the `command` that plans with them.
nlohmann::ordered_json fewer_json(const Asking&, const ScalePoint& fewer);
void print_fewer_gpus(const Asking&, const ScalePoint& fewer, const RankedPlan& best);

}  // namespace sextant
