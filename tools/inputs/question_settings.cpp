#include "tools/inputs/question_settings.hpp"

#include <algorithm>

namespace sextant {

std::vector<std::string> settings_from(const std::vector<std::string>& all, const std::string& prefix) {
  std::vector<std::string> own;
  for (const auto& setting : all)
    if (setting.starts_with(prefix + ".")) own.push_back(setting.substr(prefix.size() + 1));
  return own;
}

bool is_set(const std::vector<std::string>& settings, const std::string& field) {
  return std::ranges::any_of(settings, [&](const std::string& s) { return s.starts_with(field + "="); });
}

std::optional<std::string> set_value(const std::vector<std::string>& settings, const std::string& field) {
  const auto last = std::find_if(settings.rbegin(), settings.rend(),
                                 [&](const std::string& s) { return s.starts_with(field + "="); });
  if (last == settings.rend()) return std::nullopt;
  return last->substr(field.size() + 1);
}

bool is_cluster_setting(const std::string& setting) {
  return !setting.starts_with("model.") && !setting.starts_with("training.") &&
         !setting.starts_with("stack.");
}

}  // namespace sextant
