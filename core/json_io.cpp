#include "core/json_io.hpp"

#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.hpp"

namespace sextant {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 200;

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

// A first pass that builds nothing: it finds syntax errors, keys given twice and absurd nesting. (The parser's
// own callbacks could watch too, but make it quadratic in the length of a list of objects.)
class Watch : public nlohmann::json_sax<json> {
 public:
  explicit Watch(const std::string& file) : file_(file) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(json::number_integer_t) override { return true; }
  bool number_unsigned(json::number_unsigned_t) override { return true; }
  bool number_float(json::number_float_t, const json::string_t&) override { return true; }
  bool string(json::string_t&) override { return true; }
  bool binary(json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return keys_.pop_back(), true; }
  bool end_array() override { return keys_.pop_back(), true; }
  bool key(json::string_t& name) override {
    if (!keys_.back().insert(name).second) throw ConfigError(Problem{file_, name, "", "", "is given twice"});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& e) override {
    const std::string_view what = e.what();
    const bool truncated =
        what.find("unexpected end of input") != what.npos || what.find("missing closing quote") != what.npos;
    throw ConfigError(syntax_problem(file_, what, truncated));
  }

 private:
  bool open() {
    keys_.emplace_back();
    if (keys_.size() > kMaxDepth)
      throw ConfigError(
          Problem{file_, "", "", "", fmt::format("nested more than {} levels deep", kMaxDepth)});
    return true;
  }

  const std::string& file_;
  std::vector<std::set<std::string>> keys_;  // of every object and list that is open
};

}  // namespace

json parse_json(std::string_view text, const std::string& file) {
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    throw ConfigError(Problem{file, "", "", "", "is empty, expected JSON"});
  Watch watch(file);
  json::sax_parse(text.begin(), text.end(), &watch, json::input_format_t::json, /*strict=*/true,
                  /*ignore_comments=*/true);
  return json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/true, /*ignore_comments=*/true);
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
