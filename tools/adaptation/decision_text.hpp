// What a run that adapts decided, for people and for adaptation.jsonl.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "planner/adaptation/adaptation_policy.hpp"

namespace sextant {

std::string layout_text(const Layout&);  // its plan key, and how many GPUs are idle
nlohmann::ordered_json layout_json(const Layout&);

// "decision 1 behind step 47 (drift): ...".
std::string decision_text(const Decision&);
// A line of adaptation.jsonl.
nlohmann::ordered_json decision_json(const Decision&);
// Of the line behind a change: ", 1.2 GB of state moved in 0.3 s (0.15 GB to one rank at most)"; empty where nothing moved.
std::string moved_text(const nlohmann::ordered_json& changed);

}  // namespace sextant
