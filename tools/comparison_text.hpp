// How a comparison of predicted and measured time is shown: two tables and the fields of --json.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "profiler/compare.hpp"
#include "tools/verbs.hpp"

namespace sextant {

void print_comparison(Session&, const Comparison&);
nlohmann::ordered_json comparison_json(const Comparison&);

}  // namespace sextant
