#include "core/json_io.hpp"

#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 200;

// "[json.exception.parse_error.101] parse error at line 2, column 3: syntax error ..." in two parts.
Problem syntax_problem(const std::string& file, std::string_view what, bool truncated) {
  if (const auto id = what.find("] "); id != what.npos) what.remove_prefix(id + 2);
  constexpr std::string_view kAt = "parse error at ";
  std::string key;
  if (what.starts_with(kAt)) {
    what.remove_prefix(kAt.size());
    const auto colon = std::min(what.find(": "), what.size());
    key = what.substr(0, colon);
    what.remove_prefix(std::min(colon + 2, what.size()));
  }
  std::string hint(what.substr(0, 240));
  if (truncated) hint += "; the file looks truncated";
  return {file, key, "", "", hint};
}

// Watches the parser: objects open at the moment, with the keys seen in each.
class Watch {
 public:
  explicit Watch(const std::string& file) : file_(file) {}
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (depth > kMaxDepth)
      throw ConfigError(
          Problem{file_, "", "", "", fmt::format("nested more than {} levels deep", kMaxDepth)});
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end && !keys_.empty()) keys_.pop_back();
    if (event == Event::key && !keys_.empty() && !keys_.back().insert(parsed.get<std::string>()).second)
      throw ConfigError(Problem{file_, parsed.get<std::string>(), "", "", "is given twice"});
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& file) {
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    throw ConfigError(Problem{file, "", "", "", "is empty, expected JSON"});
  try {
    return json::parse(text.begin(), text.end(), Watch(file), /*allow_exceptions=*/true,
                       /*ignore_comments=*/true);
  } catch (const json::parse_error& e) {
    const std::string_view what = e.what();
    const bool truncated =
        what.find("unexpected end of input") != what.npos || what.find("missing closing quote") != what.npos;
    throw ConfigError(syntax_problem(file, what, truncated));
  } catch (const json::exception& e) {
    throw ConfigError(syntax_problem(file, e.what(), false));
  }
}

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
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    const std::string key(path.substr(begin, end - begin));
    if (!at->is_object() || !at->contains(key)) {
      std::vector<std::string> keys;
      if (at->is_object())
        for (const auto& item : at->items()) keys.push_back(item.key());
      const std::string near = closest(key, keys);
      throw ConfigError(Problem{"", std::string(path.substr(0, end)), "", "",
                                near.empty()
                                    ? fmt::format("no such field; there are {}", fmt::join(keys, ", "))
                                    : fmt::format("no such field, did you mean {}?", near)});
    }
    at = &(*at)[key];
    begin = end + 1;
  }
  const json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  *at = value.is_discarded() ? json(std::string(text)) : value;
}

}  // namespace sextant
