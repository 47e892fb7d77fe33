// TOML and YAML as JSON values: what the importers read settings from.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace sextant {

// Nothing where the text is not of that language, or no table of keys; `why` then has the place and the reason.
std::optional<nlohmann::json> toml_settings(const std::string& text, std::string* why = nullptr);
std::optional<nlohmann::json> yaml_settings(const std::string& text, std::string* why = nullptr);

}  // namespace sextant
