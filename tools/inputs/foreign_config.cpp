#include "tools/inputs/foreign_config.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/plan/parallel_plan.hpp"
#include "tools/import/import_file.hpp"

namespace sextant {

std::optional<std::string> foreign_config(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_text_file(path);
  } catch (const ConfigError&) {
    return std::nullopt;  // whoever reads it as a plan says why
  }
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false, true);
  if (j.is_object() && j.contains("schema")) return std::nullopt;
  if (j.is_object() && j.contains("model_type") && j.contains("hidden_size"))
    return "it looks like a model: --model takes it";
  if (j.is_object() && j.contains("device") && j.contains("node"))
    return "it looks like a cluster: --cluster takes it";
  const std::string what = importable_as(text);
  return what.empty() ? std::nullopt : std::optional(fmt::format("it looks like {}: --from takes it", what));
}

std::optional<std::string> key_of_assignments(const std::string& text) {
  if (text.find('=') == std::string::npos) return std::nullopt;
  std::string key;
  for (const char c : text) {
    if (c == '=' || c == ' ') continue;
    key += c == ',' ? '.' : c;
  }
  try {
    parse_plan_key(key);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
  return key;
}

}  // namespace sextant
