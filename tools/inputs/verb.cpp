#include "tools/inputs/verb.hpp"

#include <array>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tools/inputs/preset_files.hpp"

namespace sextant {
namespace {

// Keys of version 0.1 beside those that took their place, for one version: who reads answers with a program has time to
// follow. To be taken out with version 0.3.
constexpr std::array<std::array<std::string_view, 2>, 23> kFormerKeys = {{
    {"outcomes", "fates"},
    {"outcome", "fate"},
    {"inconsistent", "contradiction"},
    {"unsupported_by_stack", "stack_cannot"},
    {"duplicate", "repeated"},
    {"pruned_by_bound", "bounded_away"},
    {"uncertainty", "doubt"},
    {"uncertainty_percent", "doubt_percent"},
    {"uncertainty_left_percent", "doubt_left_percent"},
    {"unused_fields", "without_effect"},
    {"gained_by_refinement_share", "gained_by_rungs_share"},
    {"refinements_simulated", "rungs_simulated"},
    {"lowest_memory", "leanest"},
    {"lower_risk", "surer"},
    {"lower_risk_tie", "surer_tie"},
    {"predicted_from", "rests_on"},
    {"slow_gemms", "slow_products"},
    {"measured_operations", "works"},
    {"concurrent_with", "beside"},
    {"rebalanced_simulated", "moved_simulated"},
    {"gained_by_rebalancing_share", "gained_by_moves_share"},
    {"inconsistencies", "contradictions"},
    {"snapshot_GiB", "staging_GiB"},
}};

// What `outcome` says, and what `fate` said.
constexpr std::array<std::array<std::string_view, 2>, 4> kFormerOutcomes = {{
    {"inconsistent", "contradiction"},
    {"unsupported by stack", "stack cannot"},
    {"duplicate", "repeated"},
    {"pruned by bound", "bounded away"},
}};

std::string_view former_key(std::string_view key) {
  for (const auto& [now, former] : kFormerKeys)
    if (key == now) return former;
  return {};
}

nlohmann::ordered_json former_outcome(const nlohmann::ordered_json& value) {
  for (const auto& [now, former] : kFormerOutcomes)
    if (value == now) return former;
  return value;
}

// With the former keys beside the present ones; counts of outcomes have either the present names or the former ones, so that
// they add up.
enum class Keys : std::uint8_t { both, present, former };
nlohmann::ordered_json with_former_keys(const nlohmann::ordered_json& j, Keys keys = Keys::both) {
  if (j.is_array()) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const auto& item : j) out.push_back(with_former_keys(item));
    return out;
  }
  if (!j.is_object()) return j;
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [key, value] : j.items()) {
    const std::string former(former_key(key));
    const bool counts = key == "outcomes";
    if (former.empty() || keys != Keys::former)
      out[key] = with_former_keys(value, counts ? Keys::present : Keys::both);
    if (!former.empty() && keys != Keys::present)
      out[former] = key == "outcome" ? former_outcome(value)
                                     : with_former_keys(value, counts ? Keys::former : Keys::both);
  }
  return out;
}

}  // namespace

std::filesystem::path Session::presets() const { return find_presets(common.presets); }

void print_json(Session& session, const std::string& verb, const nlohmann::ordered_json& fields) {
  // docs/json.md says what the second versions changed.
  const char* version = verb == "explain" ? "/3" : verb == "plan" ? "/2" : "/1";
  nlohmann::ordered_json answer = {{"schema", "sextant." + verb + version}};
  answer.update(with_former_keys(fields));
  session.terminal.out << answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
                       << '\n';
}

}  // namespace sextant
