#include "runtime/data/tokenizer_file.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr std::size_t kBriefBytes = 60;

void add_brief(const json& value, int depth, std::string& out) {
  if (out.size() > kBriefBytes) return;
  if (value.is_object() || value.is_array()) {
    const bool object = value.is_object();
    out += object ? "{" : "[";
    bool first = true;
    for (auto at = value.begin(); at != value.end() && out.size() <= kBriefBytes; ++at) {
      if (!std::exchange(first, false)) out += ",";
      if (object) out += fmt::format("\"{}\":", at.key().substr(0, kBriefBytes));
      if (depth > 0)
        add_brief(*at, depth - 1, out);
      else
        out += "...";
    }
    out += object ? "}" : "]";
  } else if (value.is_string() && value.get_ref<const std::string&>().size() > kBriefBytes) {
    add_brief(json(value.get_ref<const std::string&>().substr(0, kBriefBytes)), 0, out);
  } else {
    out += value.dump(-1, ' ', false, json::error_handler_t::replace);
  }
}

}  // namespace

std::string brief(const json& value) {
  constexpr int kDepth = 4;
  std::string text;
  add_brief(value, kDepth, text);
  if (text.size() <= kBriefBytes) return text;
  text.resize(kBriefBytes - 3);
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
  if (!text.empty() && static_cast<unsigned char>(text.back()) >= 0xc0) text.pop_back();
  return text + "...";
}

bool absent(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

std::string member_path(const std::string& path, const char* key) {
  return path.empty() ? std::string(key) : path + "." + key;
}

void TokenizerFile::refuse(std::string key, std::string found, std::string expected, std::string hint) const {
  throw ConfigError(Problem{name_, std::move(key), std::move(found), std::move(expected), std::move(hint)});
}

const json& TokenizerFile::member(const json& object, const std::string& path, const char* key,
                                  json::value_t type, const char* type_name) const {
  const auto found = object.find(key);
  if (found == object.end()) refuse(member_path(path, key), "missing", type_name);
  if (found->type() != type) refuse(member_path(path, key), brief(*found), type_name);
  return *found;
}

std::string TokenizerFile::text(const json& object, const std::string& path, const char* key) const {
  return member(object, path, key, json::value_t::string, "a string").get<std::string>();
}

std::optional<std::string> TokenizerFile::text_if_any(const json& object, const std::string& path,
                                                      const char* key) const {
  if (absent(object, key)) return {};
  return text(object, path, key);
}

bool TokenizerFile::flag(const json& object, const std::string& path, const char* key, bool otherwise) const {
  if (absent(object, key)) return otherwise;
  return member(object, path, key, json::value_t::boolean, "true or false").get<bool>();
}

std::int32_t TokenizerFile::id(const json& value, const std::string& key, std::int64_t end) const {
  const bool fits =
      value.is_number_unsigned() && value.get<std::uint64_t>() < static_cast<std::uint64_t>(end);
  if (!fits) refuse(key, brief(value), fmt::format("a whole number from 0 to {}", end - 1));
  return value.get<std::int32_t>();
}

}  // namespace sextant
