// What is written of a stack as version 0.1 wrote it? Names of rules, and an ability that was true or false: read until version
// 0.3, with one line on stderr.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

// The object in today's spelling; nothing where it has that.
std::optional<nlohmann::json> present_capabilities(const nlohmann::json& can);
std::optional<nlohmann::json> present_rules(const nlohmann::json& rules);

// Of a whole stack, also under `on_generation`. What it changed: "rules.p2p_beside_compute_1f1b is read as ...".
std::vector<std::string> take_present_spelling(nlohmann::json& stack);
// The same of "rules.p2p_beside_compute_1f1b=true", without the value of it; empty: nothing is former.
std::string take_present_name(std::string& setting);

}  // namespace sextant
