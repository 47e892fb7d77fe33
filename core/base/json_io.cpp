#include "core/base/json_io.hpp"

#include <set>
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

// "[json.exception.parse_error.101] parse error at line 2, column 3: syntax error ..." in two parts.
Problem syntax_problem(const std::string& file, const std::string& path, std::string_view what) {
  if (const auto id = what.find("] "); id != what.npos) what.remove_prefix(id + 2);
  constexpr std::string_view kAt = "parse error at ", kOverflow = "number overflow parsing ";
  if (what.starts_with(kOverflow))
    return {file, path, std::string(what.substr(kOverflow.size())), "a finite number", ""};
  std::string key;
  if (what.starts_with(kAt)) {
    what.remove_prefix(kAt.size());
    const auto colon = std::min(what.find(": "), what.size());
    key = what.substr(0, colon);
    what.remove_prefix(std::min(colon + 2, what.size()));
  }
  std::string hint(what.substr(0, 240));
  const auto ends_in = [&](std::string_view end) { return hint.find(fmt::format("{}'", end)) != hint.npos; };
  if (hint.find("unexpected end of input") != hint.npos || hint.find("missing closing quote") != hint.npos)
    hint += "; the file looks truncated";
  else if (ends_in("N") || ends_in("I") || ends_in("na"))  // the first letters of NaN, Infinity, nan
    hint += fmt::format("; {}JSON has no NaN or Infinity, a number must be finite",
                        path.empty() ? "" : path + ": ");
  return {file, key, "", "", hint};
}

// A first pass that builds nothing: it finds syntax errors, keys given twice and absurd nesting. (The parser's
// own callbacks could watch too, but make it quadratic in the length of a list of objects.)
class Watch : public nlohmann::json_sax<json> {
 public:
  explicit Watch(const std::string& file) : file_(file) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(json::number_integer_t) override { return value(); }
  bool number_unsigned(json::number_unsigned_t) override { return value(); }
  bool number_float(json::number_float_t, const json::string_t&) override { return value(); }
  bool string(json::string_t&) override { return value(); }
  bool binary(json::binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(json::string_t& name) override {
    open_.back().key = name;
    if (!open_.back().keys.insert(name).second)
      throw ConfigError(Problem{file_, path(), "", "", "is given twice"});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& e) override {
    throw ConfigError(syntax_problem(file_, path(), e.what()));
  }

 private:
  // An object or list whose end was not met yet, and where in it we are.
  struct Open {
    bool list = false;
    std::size_t index = 0;
    std::string key;
    std::set<std::string> keys;
  };

  bool open(bool list) {
    open_.push_back({.list = list, .index = 0, .key = "", .keys = {}});
    if (open_.size() > kMostJsonLevels)
      throw ConfigError(
          Problem{file_, "", "", "", fmt::format("nested more than {} levels deep", kMostJsonLevels)});
    return true;
  }
  bool close() {
    open_.pop_back();
    return value();
  }
  bool value() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  std::string path() const {
    std::string out;
    for (const Open& at : open_)
      out += at.list ? fmt::format("[{}]", at.index) : (out.empty() ? "" : ".") + at.key;
    return out;
  }

  const std::string& file_;
  std::vector<Open> open_;
};

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

// What a file's name says that it holds, where that is another format; its text may be JSON all the same.
std::string_view other_format(std::string_view file) {
  constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
      {".toml", "TOML"}, {".yaml", "YAML"}, {".yml", "YAML"},           {".ini", "INI"},
      {".csv", "CSV"},   {".py", "Python"}, {".sh", "a shell's script"}};
  for (const auto& [end, format] : kFormats)
    if (file.ends_with(end)) return format;
  return "";
}

}  // namespace

json parse_json(std::string_view text, const std::string& file) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    throw ConfigError(Problem{file, "", "text in UTF-16", "JSON in UTF-8", "save it again as UTF-8"});
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    throw ConfigError(Problem{file, "", "", "", "is empty, expected JSON"});
  // Which the parser would take for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != text.npos)
    throw ConfigError(Problem{file, "", fmt::format("a NUL byte at {}", nul), "JSON in UTF-8",
                              "the file is damaged, or in UTF-16"});
  if (const std::string_view format = other_format(file);
      !format.empty() && text[text.find_first_not_of(" \t\r\n")] != '{')
    throw ConfigError(
        Problem{file, "", std::string(format), "JSON",
                "configurations of training frameworks go to --from of plan, simulate and explain"});
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
  const json value = json::parse(written, nullptr, /*allow_exceptions=*/false);
  *at = value.is_discarded() ? json(std::string(text)) : value;
}

}  // namespace sextant
