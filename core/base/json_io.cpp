#include "core/base/json_io.hpp"

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/base/shallow_json.hpp"

namespace sextant {
namespace {

using nlohmann::json;

// "fabric.rails", "defects[0].node", "zero_stages[2]" in parts; an index is a part of digits in brackets.
std::vector<std::string> parts_of(std::string_view path) {
  constexpr std::size_t kMostParts = 16;
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    std::string_view word = path.substr(begin, dot - begin);
    const std::size_t bracket = std::min(word.find('['), word.size());
    parts.emplace_back(word.substr(0, bracket));
    for (word.remove_prefix(bracket); !word.empty();) {
      const std::size_t end = word.find(']');
      const bool digits =
          end != word.npos && end > 1 && word.substr(1, end - 1).find_first_not_of("0123456789") == word.npos;
      if (word[0] != '[' || !digits || end > 7)
        throw ConfigError(
            Problem{"", std::string(path), "", "an index such as [0] behind the name of a list", ""});
      parts.emplace_back(word.substr(0, end + 1));
      word.remove_prefix(end + 1);
    }
    begin = dot + 1;
  }
  if (parts.size() > kMostParts)
    throw ConfigError(Problem{"", std::string(path), fmt::format("{} parts", parts.size()),
                              fmt::format("at most {}", kMostParts), ""});
  return parts;
}

// The item of a list, which may be one behind its last.
json& item_of(json& list, const std::string& index, const std::string& path) {
  if (list.is_null()) list = json::array();
  if (!list.is_array()) throw ConfigError(Problem{"", path, "", "", "is no list: it has no items"});
  const std::size_t i = std::stoul(index.substr(1));
  if (i > list.size())
    throw ConfigError(
        Problem{"", path + index, "", fmt::format("an index up to {}", list.size()),
                fmt::format("the list has {} items; the next is [{}]", list.size(), list.size())});
  if (i == list.size()) list.push_back(nullptr);
  return list[i];
}

}  // namespace

json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path), path.string());
}

void write_json_file(const std::filesystem::path& path, const json& value) {
  write_file_atomic(path, value.dump(2) + "\n");
}

void with_file(const std::string& file, const std::function<void()>& read) {
  try {
    read();
  } catch (const ConfigError& e) {
    auto problems = e.problems();
    for (auto& p : problems)
      if (p.file.empty()) p.file = file;
    throw ConfigError(std::move(problems));
  }
}

void with_json_file(const std::filesystem::path& path, const std::function<void(const json&)>& read) {
  with_file(path.string(), [&] { read(read_json_file(path)); });
}

void set_json_path(json& root, std::string_view path, std::string_view text) {
  json* at = &root;
  std::string so_far;
  for (const std::string& part : parts_of(path)) {
    if (part.starts_with('[')) {
      at = &item_of(*at, part, so_far);
    } else {
      if (at->is_null()) *at = json::object();
      if (part.empty() || !at->is_object())
        throw ConfigError(Problem{"", std::string(path), "", "",
                                  part.empty() ? "a name is missing before or behind a dot"
                                               : fmt::format("{} has no fields", so_far)});
      at = &(*at)[part];
      if (!so_far.empty()) so_far += '.';
    }
    so_far += part;
  }
  // A number may begin with its point, which JSON does not know.
  const bool negative = text.starts_with('-');
  const std::string_view size = text.substr(negative ? 1 : 0);
  const std::string written =
      size.starts_with('.') ? fmt::format("{}0{}", negative ? "-" : "", size) : std::string(text);
  const json value = is_shallow_json(written) ? json::parse(written, nullptr, /*allow_exceptions=*/false)
                                              : json(json::value_t::discarded);
  *at = value.is_discarded() ? json(std::string(text)) : value;
}

}  // namespace sextant
