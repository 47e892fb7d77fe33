// How a comparison of predicted and measured time is shown: two tables and the fields of --json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "profiler/compare.hpp"
#include "tools/inputs/verb.hpp"

namespace sextant {

void print_comparison(Session&, const TimelineComparison&);
nlohmann::ordered_json comparison_json(const TimelineComparison&);

}  // namespace sextant
