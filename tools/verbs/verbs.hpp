// The verbs of the command, in one explicit table.
#pragma once

#include <vector>

#include "tools/inputs/verb.hpp"

namespace sextant {

const std::vector<Verb>& verbs();

Verb presets_verb();
Verb plan_verb();
Verb explain_verb();
Verb simulate_verb();
Verb export_verb();
Verb data_verb();
Verb run_verb();
Verb compare_verb();
Verb report_verb();
Verb profile_verb();
Verb validate_verb();
Verb weights_verb();
Verb sample_verb();
Verb calibrate_verb();
Verb doctor_verb();
Verb completion_verb();

}  // namespace sextant
