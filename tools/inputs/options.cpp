#include "tools/inputs/options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/words.hpp"

namespace sextant {

namespace {
// Options go by their long form.
[[noreturn]] void refuse(const OptionRecord& record, const std::string& value, const std::string& expected,
                         const std::string& hint = "") {
  const std::string flags = record.flag;
  const std::size_t dashes = flags.find("--");
  if (dashes != std::string::npos)
    throw ConfigError(Problem{flags.substr(dashes), "", value, expected, hint});
  throw UsageError(to_string(Problem{flags, "", value, expected, ""}) + (hint.empty() ? "" : "\n  " + hint));
}

// "8k" and "4M", as people write sequence lengths, and batches by their tokens.
std::string in_digits(const std::string& text, std::string_view unit) {
  std::int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  constexpr std::int64_t kLargest = 1 << 20;
  if (error != std::errc{} || n < 1 || n > kLargest || (suffix != "k" && suffix != "K" && suffix != "M"))
    return "";
  if (unit == "tokens") return fmt::format("{} is written {}", text, n * (suffix == "M" ? 1 << 20 : 1 << 10));
  return unit == "sequences" ? fmt::format("a batch of {} tokens has {} / --seq-len sequences", text, text)
                             : "";
}

template <class T>
void add_any_number(CLI::App& app, const OptionRecord& record, T& target, std::string_view kind) {
  const auto parse = [record, &target, kind](const CLI::results_t& results) {
    const std::string& text = results.front();
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto number = static_cast<double>(value);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(number) ||
        number < record.min || number > record.max)
      refuse(record, text.empty() ? "nothing" : text,
             fmt::format("{} {}from {} to {}", kind, *record.unit ? fmt::format("({}) ", record.unit) : "",
                         record.min, record.max),
             in_digits(text, record.unit));
    target = value;
    return true;
  };
  app.add_option(record.flag, parse, record.text)
      ->type_name(record.metavar)
      ->default_str(fmt::format("{}", target));
}
}  // namespace

void add_number(CLI::App& app, const OptionRecord& record, int& target) {
  add_any_number(app, record, target, "a whole number");
}

void add_number(CLI::App& app, const OptionRecord& record, double& target) {
  add_any_number(app, record, target, "a number");
}

void add_text(CLI::App& app, const OptionRecord& record, std::string& target) {
  const auto parse = [record, &target](const CLI::results_t& results) {
    const std::string& text = results.front();
    if (text.empty()) refuse(record, "nothing", record.metavar);
    const auto words = choices(record.metavar);
    if (!words.empty() && std::find(words.begin(), words.end(), text) == words.end()) {
      const std::string other = record.otherwise ? record.otherwise(text) : "";
      std::string near = closest(lower(text), words);
      if (near.empty()) near = names_around(text, words);
      refuse(record, text, fmt::format("one of {}", fmt::join(words, ", ")),
             !other.empty() ? other
             : near.empty() ? ""
                            : fmt::format("did you mean {}?", near));
    }
    target = text;
    return true;
  };
  app.add_option(record.flag, parse, record.text)->type_name(record.metavar)->default_str(target);
}

void add_list(CLI::App& app, const OptionRecord& record, std::vector<std::string>& target) {
  app.add_option(record.flag, target, record.text)
      ->type_name(record.metavar)
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
}

void add_flag(CLI::App& app, const OptionRecord& record, bool& target) {
  app.add_flag(record.flag, target, record.text);
}

std::vector<std::string> choices(const std::string& metavar) {
  std::vector<std::string> words;
  if (metavar.find('|') == std::string::npos || metavar.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 0)
    return words;
  for (std::size_t begin = 0; begin <= metavar.size();) {
    const std::size_t end = std::min(metavar.find('|', begin), metavar.size());
    words.push_back(metavar.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

void add_common_options(CLI::App& app, CommonOptions& common) {
  add_flag(app, {.flag = "--json", .metavar = "", .text = "print JSON (schema in docs/json.md)"},
           common.json);
  add_flag(app,
           {.flag = "--wide", .metavar = "", .text = "keep every table column, even beyond the terminal"},
           common.wide);
  add_text(app, {.flag = "--color", .metavar = "auto|always|never", .text = "colours of the output"},
           common.color);
  add_text(
      app,
      {.flag = "--presets",
       .metavar = "DIR",
       .text =
           "folder with models/, devices/, fabrics/, clusters/ and stacks/ in place of the installed one"},
      common.presets);
}

}  // namespace sextant
