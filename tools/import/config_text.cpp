#include "tools/import/config_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <toml++/toml.h>
#include <yaml-cpp/yaml.h>

#include "core/base/decimal.hpp"

namespace sextant {

namespace {

constexpr int kMostNodes = 100'000;  // what aliases of YAML repeat counts again
constexpr int kDeepestNode = 100;
constexpr std::size_t kLongestYaml = 1 << 20;  // reading one takes seconds

nlohmann::json of_toml(const toml::node& node, int depth) {
  if (depth > kDeepestNode) return nullptr;
  if (const auto* table = node.as_table()) {
    nlohmann::json out = nlohmann::json::object();
    for (const auto& [key, item] : *table) out[std::string(key.str())] = of_toml(item, depth + 1);
    return out;
  }
  if (const auto* array = node.as_array()) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& item : *array) out.push_back(of_toml(item, depth + 1));
    return out;
  }
  if (const auto* value = node.as_integer()) return value->get();
  if (const auto* value = node.as_floating_point()) return value->get();
  if (const auto* value = node.as_boolean()) return value->get();
  if (const auto* value = node.as_string()) return value->get();
  return nullptr;  // dates
}

class YamlReader {
 public:
  nlohmann::json read(const YAML::Node& node, int depth = 0) {
    if (++nodes_ > kMostNodes || depth > kDeepestNode) throw YAML::Exception(node.Mark(), "too many values");
    if (node.IsMap()) {
      nlohmann::json out = nlohmann::json::object();
      for (const auto& item : node)
        if (item.first.IsScalar()) out[item.first.Scalar()] = read(item.second, depth + 1);
      return out;
    }
    if (node.IsSequence()) {
      nlohmann::json out = nlohmann::json::array();
      for (const auto& item : node) out.push_back(read(item, depth + 1));
      return out;
    }
    return node.IsScalar() ? scalar(node) : nlohmann::json();
  }

 private:
  static nlohmann::json scalar(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    if (node.Tag() == "!") return text;  // in quotes
    for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "on"})
      if (text == word) return true;
    for (const char* word : {"false", "False", "FALSE", "no", "No", "off"})
      if (text == word) return false;
    for (const char* word : {"", "~", "null", "Null", "NULL", "None"})
      if (text == word) return nullptr;
    const std::string_view digits = std::string_view(text).substr(text.starts_with('-') ? 1 : 0);
    if (const auto n = parse_count(digits, 1LL << 60)) return text.starts_with('-') ? -*n : *n;
    if (const auto x = parse_decimal(text)) return *x;
    return text;
  }

  int nodes_ = 0;
};

}  // namespace

std::optional<nlohmann::json> toml_settings(const std::string& text, std::string* why) {
  try {
    const toml::table table = toml::parse(text);
    nlohmann::json settings = of_toml(table, 0);
    return settings.empty() ? std::nullopt : std::optional(std::move(settings));
  } catch (const toml::parse_error& error) {
    if (why)
      *why = fmt::format("line {}, column {}: {}", error.source().begin.line, error.source().begin.column,
                         error.description());
    return std::nullopt;
  }
}

std::optional<nlohmann::json> yaml_settings(const std::string& text, std::string* why) {
  if (text.size() > kLongestYaml) {
    if (why) *why = "more than 1 MiB of YAML";
    return std::nullopt;
  }
  try {
    const YAML::Node node = YAML::Load(text);
    if (!node.IsMap()) return std::nullopt;
    return YamlReader().read(node);
  } catch (const YAML::Exception& error) {
    if (why)
      *why = fmt::format("line {}, column {}: {}", error.mark.line + 1, error.mark.column + 1, error.msg);
    return std::nullopt;
  }
}

}  // namespace sextant
