#include "tools/traces/kernel_names.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/error.hpp"
#include "core/base/words.hpp"

namespace sextant {
namespace {

constexpr const char* kRuleForm = R"({"words": [...], ...}, as the rules that ship with sextant have it)";

std::vector<std::string> words_of_rule(const nlohmann::json& rule, const std::string& file, const char* key) {
  const auto found = rule.find("words");
  if (found == rule.end() || !found->is_array() || found->empty() ||
      !std::ranges::all_of(*found, [](const auto& word) { return word.is_string(); }))
    throw ConfigError(Problem{file, key, rule.dump(), kRuleForm, ""});
  std::vector<std::string> out;
  for (const auto& word : *found) out.push_back(lower(word.get<std::string>()));
  return out;
}

// The place of what the rule states under `key` among names.
int value_of_rule(const nlohmann::json& rule, const std::string& file, const char* key, const auto& names) {
  const auto found = rule.find(key);
  const int place =
      found != rule.end() && found->is_string() ? place_among(names, found->get<std::string>()) : -1;
  if (place < 0)
    throw ConfigError(Problem{file, key, rule.dump(), fmt::format("one of {}", fmt::join(names, ", ")), ""});
  return place;
}

}  // namespace

KernelNames::KernelNames(const std::filesystem::path& preset_dir) {
  const auto path = preset_dir / "kernel_names.json";
  const nlohmann::json all = read_plain_values(path);
  const auto rules = [&](const char* key) -> const nlohmann::json& {
    if (!all.contains(key) || !all[key].is_array())
      throw ConfigError(Problem{path.string(), key, "", "a list of rules", kRuleForm});
    return all[key];
  };
  for (const auto& rule : rules("kernels"))
    kernels_.push_back({words_of_rule(rule, path.string(), "kernels"),
                        value_of_rule(rule, path.string(), "class", kKernelClassNames),
                        {}});
  for (const auto& rule : rules("collectives"))
    collectives_.push_back({words_of_rule(rule, path.string(), "collectives"),
                            value_of_rule(rule, path.string(), "collective", kCollectiveWords),
                            {}});
  for (const auto& rule : rules("groups")) {
    Rule group{words_of_rule(rule, path.string(), "groups"), 0, {}};
    for (const auto& axis : rule.value("axes", nlohmann::json::array()))
      group.axes.push_back(
          static_cast<Axis>(value_of_rule({{"axes", axis}}, path.string(), "axes", kAxisNames)));
    groups_.push_back(std::move(group));
  }
  for (const auto& rule : rules("steps"))
    for (std::string& word : words_of_rule(rule, path.string(), "steps")) steps_.push_back(std::move(word));
}

const KernelNames::Rule* KernelNames::first_fit(const std::vector<Rule>& rules, std::string_view text) {
  const std::string small = lower(text);
  const auto fits = [&](const Rule& rule) {
    return std::ranges::any_of(rule.words, [&](const std::string& w) { return small.find(w) != small.npos; });
  };
  const auto found = std::ranges::find_if(rules, fits);
  return found == rules.end() ? nullptr : &*found;
}

KernelClass KernelNames::class_of(std::string_view kernel) const {
  const Rule* rule = first_fit(kernels_, kernel);
  return rule ? static_cast<KernelClass>(rule->value) : KernelClass::other;
}

CollectiveName KernelNames::collective_of(std::string_view kernel, std::string_view said) const {
  const Rule* rule = first_fit(collectives_, said);
  if (!rule) rule = first_fit(collectives_, kernel);
  return rule ? static_cast<CollectiveName>(rule->value) : CollectiveName::unnamed;
}

KernelNames::StepWord KernelNames::step_of(std::string_view range) const {
  const std::string small = lower(range);
  for (std::size_t word = 0; word < steps_.size(); ++word) {
    if (!small.starts_with(steps_[word])) continue;
    const std::size_t at = small.find_first_not_of(" #_:", steps_[word].size());
    if (at == small.npos) return {static_cast<int>(word), -1};
    std::int64_t number = 0;
    const auto end = small.data() + small.size();
    if (std::from_chars(small.data() + at, end, number).ec == std::errc() && number >= 0)
      return {static_cast<int>(word), number};
  }
  return {};
}

std::vector<Axis> KernelNames::axes_of(std::string_view description) const {
  const Rule* rule = description.empty() ? nullptr : first_fit(groups_, description);
  return rule ? rule->axes : std::vector<Axis>{};
}

}  // namespace sextant
