// How traced steps are shown: ranks, parts of the step predicted against measured, collectives, and what explains the difference.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/inputs/verb.hpp"
#include "tools/traces/step_parts.hpp"

namespace sextant {

// Without a prediction the measured columns alone.
void print_traced(Session&, const TracedJob&, const TracedAccount&,
                  const std::optional<StepAccount>& predicted);
nlohmann::ordered_json traced_json(const TracedJob&, const TracedAccount&,
                                   const std::optional<StepAccount>& predicted);

}  // namespace sextant
