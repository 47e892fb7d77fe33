#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/base/shallow_json.hpp"

namespace sextant {
namespace {

using nlohmann::json;

// A place in a text. The library's parser of this type exists here alone, compiled as this source is; that of `const char*` is
// whichever source's the linker meets first.
struct TextPosition {
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  reference operator*() const { return *at; }
  TextPosition& operator++() {
    ++at;
    return *this;
  }
  TextPosition operator++(int) { return {at++}; }
  bool operator==(const TextPosition&) const = default;
};

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

// Builds the value, and refuses syntax errors, keys given twice and absurd nesting. (The library's own builder takes the last of two
// keys, and its callbacks make it quadratic in the length of a list of objects.)
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const std::string& file) : file_(file) {}
  json take() { return std::move(root_); }

  bool null() override { return place(nullptr); }
  bool boolean(bool value) override { return place(value); }
  bool number_integer(json::number_integer_t value) override { return place(value); }
  bool number_unsigned(json::number_unsigned_t value) override { return place(value); }
  bool number_float(json::number_float_t value, const json::string_t&) override { return place(value); }
  bool string(json::string_t& value) override { return place(std::move(value)); }
  bool binary(json::binary_t& value) override { return place(std::move(value)); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(json::string_t& name) override {
    open_.back().key = name;
    if (open_.back().value->contains(name))
      throw ConfigError(Problem{file_, path(), "", "", "is given twice"});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& e) override {
    throw ConfigError(syntax_problem(file_, path(), e.what()));
  }

 private:
  // An object or list whose end was not met yet, and where in it we are. It stays where it is until its end: what holds it gets no
  // other item before.
  struct Open {
    json* value = nullptr;
    std::string key;
  };

  json& at_its_place(json value) {
    if (open_.empty()) return root_ = std::move(value);
    json& around = *open_.back().value;
    if (!around.is_array()) return around[open_.back().key] = std::move(value);
    around.push_back(std::move(value));
    return around.back();
  }
  template <class T>
  bool place(T value) {
    at_its_place(std::move(value));
    return true;
  }
  bool open(json empty) {
    open_.push_back({.value = &at_its_place(std::move(empty)), .key = ""});
    if (open_.size() > kMostJsonLevels)
      throw ConfigError(
          Problem{file_, "", "", "", fmt::format("nested more than {} levels deep", kMostJsonLevels)});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  std::string path() const {
    std::string out;
    for (std::size_t level = 0; level < open_.size(); ++level) {
      const json& value = *open_[level].value;
      const std::size_t begun = level + 1 < open_.size() ? 1 : 0;  // the item that is open is the list's last
      if (value.is_array())
        out += fmt::format("[{}]", value.size() - begun);
      else
        out += (out.empty() ? "" : ".") + open_[level].key;
    }
    return out;
  }

  const std::string& file_;
  json root_;
  std::vector<Open> open_;
};

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
  Builder builder(file);
  json::sax_parse(TextPosition{text.data()}, TextPosition{text.data() + text.size()}, &builder,
                  json::input_format_t::json,
                  /*strict=*/true, /*ignore_comments=*/true);
  return builder.take();
}

}  // namespace sextant
