// --set PATH=VALUE: which fields of model, training, stack and cluster a command line states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/json_io.hpp"

namespace sextant {

// Settings whose path begins with `prefix.`, without it.
std::vector<std::string> settings_from(const std::vector<std::string>& all, const std::string& prefix);

bool is_set(const std::vector<std::string>& settings, const std::string& field);

// What the last setting of that field says; nothing without one.
std::optional<std::string> set_value(const std::vector<std::string>& settings, const std::string& field);

bool is_cluster_setting(const std::string& setting);

// Any field of a value with a JSON form, by its path below `prefix`. Throws ConfigError.
template <class T>
void apply_settings(T& value, const std::vector<std::string>& all, const std::string& prefix) {
  const auto settings = settings_from(all, prefix);
  if (settings.empty()) return;
  try {
    nlohmann::json j = value;
    for (const auto& setting : settings) {
      const std::size_t equals = setting.find('=');
      if (equals == std::string::npos)
        throw ConfigError(
            Problem{.file = "", .key = setting, .value = "no value", .expected = "KEY=VALUE", .hint = ""});
      set_json_path(j, setting.substr(0, equals), setting.substr(equals + 1));
    }
    from_json(j, value);
  } catch (const ConfigError& error) {
    auto problems = error.problems();
    for (auto& p : problems) {
      p.file = "--set";
      p.key = prefix + "." + p.key;
    }
    throw ConfigError(std::move(problems));
  }
}

}  // namespace sextant
