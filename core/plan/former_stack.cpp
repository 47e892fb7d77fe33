#include "core/plan/former_stack.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/plan/stage_cuts.hpp"

namespace sextant {
namespace {

constexpr const char* kUnevenStages = "uneven_stages";

struct FormerRule {
  const char *former, *present;
};
constexpr std::array kFormerRules = {
    FormerRule{"gather_beside_forward", "param_gather_overlaps_forward"},
    FormerRule{"p2p_beside_compute_1f1b", "p2p_overlaps_compute_1f1b"},
    FormerRule{"p2p_beside_compute_interleaved", "p2p_overlaps_compute_interleaved"},
    FormerRule{"joined_products", "fused_projections"}};

// A file that has both names is refused like one with an unknown key.
bool is_former(const FormerRule& rule, const nlohmann::json& rules) {
  return rules.contains(rule.former) && !rules.contains(rule.present);
}

std::string name_change(const std::string& at, const FormerRule& rule) {
  return fmt::format("{}rules.{} is read as {}", at, rule.former, rule.present);
}

// `at`: "on_generation.hopper.", or empty.
void take_part(nlohmann::json& part, const std::string& at, std::vector<std::string>& changes) {
  if (!part.is_object()) return;
  if (const auto can = part.find("can"); can != part.end())
    if (auto present = present_capabilities(*can)) {
      changes.push_back(fmt::format("{}can.{} {} is read as {}", at, kUnevenStages,
                                    (*can)[kUnevenStages].dump(), (*present)[kUnevenStages].dump()));
      *can = std::move(*present);
    }
  const auto rules = part.find("rules");
  if (rules == part.end()) return;
  for (const FormerRule& rule : kFormerRules)
    if (is_former(rule, *rules)) changes.push_back(name_change(at, rule));
  if (auto present = present_rules(*rules)) *rules = std::move(*present);
}

}  // namespace

std::optional<nlohmann::json> present_capabilities(const nlohmann::json& can) {
  const auto found = can.find(kUnevenStages);
  if (found == can.end() || !found->is_boolean()) return std::nullopt;
  nlohmann::json present = can;
  present[kUnevenStages] = name(found->get<bool>() ? UnevenStages::any : UnevenStages::none);
  return present;
}

std::optional<nlohmann::json> present_rules(const nlohmann::json& rules) {
  std::optional<nlohmann::json> present;
  for (const FormerRule& rule : kFormerRules) {
    if (!is_former(rule, rules)) continue;
    if (!present) present = rules;
    (*present)[rule.present] = rules.at(rule.former);
    present->erase(rule.former);
  }
  return present;
}

std::vector<std::string> take_present_spelling(nlohmann::json& stack) {
  std::vector<std::string> changes;
  take_part(stack, "", changes);
  if (!stack.is_object()) return changes;
  const auto by_generation = stack.find("on_generation");
  if (by_generation == stack.end() || !by_generation->is_object()) return changes;
  for (auto& [generation, part] : by_generation->items())
    take_part(part, fmt::format("on_generation.{}.", generation), changes);
  return changes;
}

std::string take_present_name(std::string& setting) {
  for (const FormerRule& rule : kFormerRules) {
    const std::string former = fmt::format("rules.{}=", rule.former);
    const std::size_t at = setting.find(former);
    if (at == std::string::npos) continue;
    setting.replace(at, former.size(), fmt::format("rules.{}=", rule.present));
    return name_change(setting.substr(0, at), rule);
  }
  return {};
}

std::string former_text(const std::string& file, const std::vector<std::string>& changes) {
  if (changes.empty()) return {};
  return fmt::format("{}: {}; the next version reads the latter alone", file, fmt::join(changes, ", "));
}

}  // namespace sextant
