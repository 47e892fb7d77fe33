#include "tools/inputs/preset_values.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_units.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/shallow_json.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// What the letters of "origin" say.
std::string in_words(const std::string& origin) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"T", "measured"}, {"F", "fitted"}, {"S", "specified"}, {"D", "documented"}, {"G", "assumed"}};
  for (const auto& [letter, word] : kWords)
    if (origin == letter) return std::string(word);
  return origin;
}

Json read_object_of(const fs::path& path) {
  Json value = json_or_discarded<Json>(read_text_file(path));
  if (!value.is_object())
    throw ConfigError(Problem{
        .file = path.string(), .key = "", .value = "", .expected = "a readable JSON object", .hint = ""});
  return value;
}

std::string value_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string text_at(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end()) return "";
  return at->is_string() ? at->get<std::string>() : value_json(*at);
}

bool is_number(const Json& value) {
  return value.is_number() || (value.is_array() && !value.empty() &&
                               std::ranges::all_of(value, [](const Json& item) { return item.is_number(); }));
}

// "calibrated constants[3].cold_of.efa-p5" as "calibrated constants[].cold_of.efa-p5", in its parts. A point between digits is of a number.
std::vector<std::string> parts_of(const std::string& key) {
  std::vector<std::string> parts(1);
  const auto digit = [&](std::size_t at) { return at < key.size() && key[at] >= '0' && key[at] <= '9'; };
  for (std::size_t i = 0; i < key.size(); ++i) {
    if (key[i] == '.' && !(digit(i - 1) && digit(i + 1)))
      parts.emplace_back();
    else
      parts.back() += key[i];
    if (key[i] == '[') i = key.find(']', i) - 1;
  }
  return parts;
}

// '*' stands for one part.
bool fits(const std::string& pattern, const std::string& key) {
  return std::ranges::equal(parts_of(pattern), parts_of(key),
                            [](const auto& p, const auto& k) { return p == "*" || p == k; });
}

struct ValueOrigin {
  std::string origin, source, date;
};

class Reader {
 public:
  Reader(const Json& meanings, const std::string& kind) {
    for (const auto& [kinds, keys] : meanings.items()) {
      const bool of_kind =
          keys.is_object() && (", " + kinds + ",").find(", " + kind + ",") != std::string::npos;
      if (of_kind) meanings_.push_back(keys);
    }
  }

  void read(const Json& node, const std::string& key, const ValueOrigin& around) {
    if (node.is_object() && node.contains("value")) return add(node.at("value"), key, around, node);
    const bool list_of_objects =
        node.is_array() && std::ranges::any_of(node, [](const Json& item) { return item.is_structured(); });
    if (!node.is_object() && !list_of_objects) return add(node, key, around, Json::object());
    ValueOrigin own = around;
    if (node.is_object() && node.contains("source"))
      own = {text_at(node, "origin"), text_at(node, "source"), text_at(node, "date")};
    for (std::size_t i = 0; list_of_objects && i < node.size(); ++i)
      read(node[i], fmt::format("{}[{}]", key, i), own);
    if (node.is_object())
      for (const auto& [name, part] : node.items()) read(part, key.empty() ? name : key + "." + name, own);
  }

  std::vector<PresetValue> values;

 private:
  void add(const Json& value, const std::string& key, const ValueOrigin& around, const Json& stated) {
    PresetValue v;
    v.key = key;
    v.value = value_json(value);
    v.number = is_number(value);
    if (stated.contains("low")) v.low = value_json(stated.at("low"));
    if (stated.contains("high")) v.high = value_json(stated.at("high"));
    const Json* known = meaning_of(key);
    v.unit = stated.contains("unit") || known == nullptr ? text_at(stated, "unit") : text_at(*known, "unit");
    if (known != nullptr) v.meaning = text_at(*known, "meaning");
    ValueOrigin from = {text_at(stated, "origin"), text_at(stated, "source"), text_at(stated, "date")};
    if (from.source.empty() && v.number && known != nullptr) {
      // A constant of its own is not vouched for by what the whole file is from.
      if (!known->value("own", false)) from = around;
      if (from.source.empty()) from = {text_at(*known, "origin"), text_at(*known, "source"), ""};
      if (!from.source.empty() && from.origin.empty()) from.origin = "D";
    }
    v.origin = in_words(from.origin);
    v.source = from.source;
    v.date = from.date;
    values.push_back(std::move(v));
  }

  const Json* meaning_of(const std::string& key) const {
    for (const Json& keys : meanings_)
      for (const auto& [pattern, meaning] : keys.items())
        if (fits(pattern, key)) return &meaning;
    return nullptr;
  }

  std::vector<Json> meanings_;
};

std::vector<PresetValue> values_of(const Json& content, const Json& meanings, const std::string& kind) {
  Reader reader(meanings, kind);
  reader.read(content, "", {});
  return std::move(reader.values);
}

}  // namespace

std::string preset_kind(const fs::path& file, const fs::path& presets) {
  const bool beside = file.parent_path() == presets;
  return (beside ? file.stem() : file.parent_path().filename()).string();
}

std::vector<PresetValue> preset_values(const fs::path& presets, const fs::path& file) {
  constexpr int kDeepestBase = 8;
  const fs::path table = presets / "meanings.json";
  const Json meanings = fs::exists(table) ? read_object_of(table) : Json::object();
  const std::string kind = preset_kind(file, presets);
  Json content = read_object_of(file);
  auto values = values_of(content, meanings, kind);
  for (int depth = 0; depth < kDeepestBase && kind == "stacks" && content.contains("base"); ++depth) {
    const std::string base = text_at(content, "base");
    const auto path = find_preset(presets, kind, base);
    if (!path) break;
    content = read_object_of(*path);
    for (PresetValue& v : values_of(content, meanings, kind)) {
      const bool own = std::ranges::any_of(values, [&](const PresetValue& o) { return o.key == v.key; });
      if (own || v.key.find('.') == std::string::npos) continue;  // name, title, ... are the base's own
      v.of = base;
      values.push_back(std::move(v));
    }
  }
  return values;
}

std::vector<std::string> unsaid(const PresetValue& v) {
  std::vector<std::string> missing;
  if (!v.number) return missing;
  if (v.unit.empty()) missing.emplace_back("unit");
  if (v.meaning.empty()) missing.emplace_back("meaning");
  if (v.source.empty() || v.origin.empty()) missing.emplace_back("source");
  if (v.origin == "fitted" && v.date.empty()) missing.emplace_back("date");
  if (const Unit* stated = stated_unit(v.key); stated && !v.unit.starts_with(stated->name))
    missing.push_back(fmt::format("unit {}", stated->name));
  return missing;
}

}  // namespace sextant
