#include "tools/import/megatron_log.hpp"

#include <algorithm>
#include <utility>

#include "core/base/decimal.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_text.hpp"

namespace sextant {

namespace {

// Arguments that no option of the same name sets.
constexpr std::pair<const char*, const char*> kRenamed[] = {
    {"virtual_pipeline_model_parallel_size", "--num-virtual-stages-per-pipeline-rank"},
    {"fp8", "--fp8-format"}};

// "['core_attn', 'mlp']" as its words; other values are one.
std::vector<std::string> words_of_value(std::string_view value) {
  std::vector<std::string> words;
  std::string word;
  const bool list = value.starts_with('[');
  for (const char c : value)
    if (list && (c == '[' || c == ']' || c == '\'' || c == ',' || c == ' ')) {
      if (!word.empty()) words.push_back(std::exchange(word, {}));
    } else {
      word += c;
    }
  if (!word.empty()) words.push_back(word);
  return words;
}

void add_argument(std::string_view key, std::string_view value, CommandFlags& flags) {
  if (key == "world_size")
    if (const auto ranks = parse_count(value, kMaxWorld); ranks && *ranks > 0)
      flags.gpus = static_cast<int>(*ranks);
  if (key == "add_bias_linear" && value == "False") flags.options["--disable-bias-linear"] = {};
  if (value == "None" || value == "False" || value == "[]") return;
  std::string name = "--" + std::string(key);
  std::replace(name.begin(), name.end(), '_', '-');
  for (const auto& [argument, option] : kRenamed)
    if (key == argument) name = option;
  flags.options[name] = value == "True" ? std::vector<std::string>() : words_of_value(value);
}

}  // namespace

std::optional<CommandFlags> logged_arguments(const std::string& text) {
  if (text.find("- arguments -") == text.npos) return std::nullopt;
  CommandFlags flags;
  bool inside = false;
  each_line(without_launcher_tags(text), [&](std::string_view line, int) {
    if (line.find("- end of arguments -") != line.npos)
      inside = false;
    else if (line.find("- arguments -") != line.npos)
      inside = true;
    const std::size_t dots = line.find(" ..");
    if (!inside || dots == line.npos) return;
    const std::size_t value = std::min(line.find_first_not_of('.', dots + 1), line.size());
    add_argument(last_word(line.substr(0, dots)), without_blanks(line.substr(value)), flags);
  });
  return flags.count() > 0 ? std::optional(flags) : std::nullopt;
}

}  // namespace sextant
