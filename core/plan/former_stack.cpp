#include "core/plan/former_stack.hpp"

#include <array>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/former_keys.hpp"
#include "core/plan/stage_cuts.hpp"

namespace sextant {
namespace {

constexpr const char* kUnevenStages = "uneven_stages";

constexpr std::array kFormerRules = {
    FormerKey{"gather_beside_forward", "param_gather_overlaps_forward"},
    FormerKey{"p2p_beside_compute_1f1b", "p2p_overlaps_compute_1f1b"},
    FormerKey{"p2p_beside_compute_interleaved", "p2p_overlaps_compute_interleaved"},
    FormerKey{"joined_products", "fused_projections"}};

std::string name_change(const std::string& at, const FormerKey& rule) {
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
  for (const FormerKey& rule : kFormerRules)
    if (has_former(*rules, rule)) changes.push_back(name_change(at, rule));
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
  for (const FormerKey& rule : kFormerRules) {
    if (!has_former(rules, rule)) continue;
    if (!present) present = rules;
    take_present_key(*present, rule);
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
  for (const FormerKey& rule : kFormerRules) {
    const std::string former = fmt::format("rules.{}=", rule.former);
    const std::size_t at = setting.find(former);
    if (at == std::string::npos) continue;
    setting.replace(at, former.size(), fmt::format("rules.{}=", rule.present));
    return name_change(setting.substr(0, at), rule);
  }
  return {};
}

}  // namespace sextant
