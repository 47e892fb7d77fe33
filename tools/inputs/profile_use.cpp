#include "tools/inputs/profile_use.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/cluster/topology.hpp"
#include "cost_models/collective.hpp"
#include "planner/calibration/profile_priors.hpp"
#include "planner/simulation/machine_samples.hpp"

namespace sextant {
namespace {

constexpr double kWorthNaming = 0.01;  // of a step's time

bool is_among(const std::vector<std::string>& keys, const std::string& key) {
  return std::ranges::find(keys, key) != keys.end();
}

// Without those that a user has stated.
std::vector<Setting> not_stated(std::vector<Setting> told, const std::vector<std::string>& stated) {
  std::erase_if(told, [&](const Setting& s) {
    return is_among(stated, (s.of == ConstantOwner::stack ? "stack.kernels." : "device.") + s.key);
  });
  return told;
}

// Without constants of networks, and none where nothing measured tells any.
std::vector<Setting> constants_told(const GivenProfile& profile, const ClusterSpec& cluster,
                                    const std::filesystem::path& presets) {
  if (!taken_on(profile.table, cluster.device)) return {};
  std::vector<Setting> told;
  try {
    for (const ConstantFit& fit :
         profile_priors(profile.table, profile.file, cluster, presets, load_calibration_rules(presets))
             .constants)
      if (fit.constant.of != ConstantOwner::fabric)
        told.push_back({fit.constant.of, fit.constant.owner, fit.constant.key, fit.value});
  } catch (const ConfigError&) {  // of attention or small exchanges alone, say
  }
  if (!profile.table.facts) return told;
  for (const auto& [key, value] : interference_of(*profile.table.facts))
    told.push_back({ConstantOwner::stack, kProfiledStack, key, value});
  return told;
}

// What lies outside the runtime's own allocations, of the device's memory; 0: not told.
double outside_told(const GivenProfile* profile, const DeviceSpec& device,
                    const std::vector<std::string>& stated) {
  if (is_among(stated, "stack.memory.outside_GiB")) return 0;
  if (!profile || !profile->table.facts || !taken_on(profile->table, device)) return 0;
  return profile->table.facts->outside_GiB;
}

AnalyticCostModel analytic_with(ClusterSpec cluster, StackSpec stack, const std::vector<Setting>& calibrated,
                                const std::vector<Setting>& told, double outside_GiB,
                                const std::filesystem::path& presets) {
  const std::string& generation = cluster.device.generation;
  CostConstants constants = load_cost_preset(generation, presets / "cost").constants;
  for (const auto* settings : {&told, &calibrated}) {
    use_settings(*settings, generation, constants);
    use_settings(*settings, stack);
    use_settings(*settings, cluster.device);
  }
  if (outside_GiB > 0 && stack.name == kProfiledStack) stack.memory.outside = from_gib(outside_GiB);
  return {cluster, stack, constants};
}

// Exchanges inside a node by kind, size and group, alone on the machine: inside a step ranks wait for each other as well.
std::vector<ToldTime> collectives_told(const WorkProfile& table, const ClusterSpec& cluster,
                                       const AnalyticCostModel& model) {
  if (!table.facts || !taken_on(table, cluster.device)) return {};
  const Machine idle(cluster.device, cluster.node, alone(model.machine().constants));
  std::optional<Topology> topology;  // of all the cluster: made for the first collective
  std::vector<ToldTime> out;
  for (const MachineSample& sample : machine_samples(*table.facts)) {
    const auto* collective = std::get_if<MeasuredCollective>(&sample.what);
    if (!collective || collective->nodes > 1) continue;
    const auto ranks = first_ranks(collective->ranks, 1, cluster);
    if (!ranks) continue;
    CollectiveWork work = work_of(*collective);
    if (!topology) topology.emplace(cluster);
    work.group = topology->group_of(*ranks);
    out.push_back({work, sample.took + model.price(work).duration - price_collective(work, idle).duration});
  }
  return out;
}

std::string machine_text(const WorkProfile& table) {
  return table.machine.substr(0, table.machine.find(','));
}

}  // namespace

std::string GivenProfile::text() const {
  std::string of = machine_text(table);
  if (!table.date.empty()) of += (of.empty() ? "" : ", ") + table.date;
  return of.empty() ? file : fmt::format("{} ({})", file, of);
}

GivenProfile load_profile_of(const std::string& file, const DeviceSpec& device,
                             const std::filesystem::path& presets) {
  GivenProfile profile{file, load_profile(file, presets)};
  if (!taken_on(profile.table, device))
    throw ConfigError(Problem{file, "machine",
                              profile.table.machine.empty() ? "(not stated)" : profile.table.machine,
                              fmt::format("a profile of {}, the device that is planned for", device.name),
                              "times of one device do not hold for another: run sextant profile there"});
  if (const auto& facts = profile.table.facts;
      profile.table.works.empty() &&
      (!facts || (machine_samples(*facts).empty() && interference_of(*facts).empty())))
    throw ConfigError(Problem{file, "operations", "none",
                              "times of operations, or of the machine by itself (facts)",
                              "sextant profile --for plan.json -o profile.json"});
  return profile;
}

MachineCosts::MachineCosts(const ClusterSpec& cluster, const StackSpec& stack,
                           const std::vector<Setting>& calibrated, const GivenProfile* profile,
                           const std::filesystem::path& presets, const std::vector<std::string>& stated)
    : told_(profile && calibrated.empty() ? not_stated(constants_told(*profile, cluster, presets), stated)
                                          : std::vector<Setting>()),
      outside_GiB_(outside_told(profile, cluster.device, stated)),
      analytic_(analytic_with(cluster, stack, calibrated, told_, outside_GiB_, presets)) {
  if (profile)
    table_.emplace(profile->table, analytic_, collectives_told(profile->table, cluster, analytic_));
}

std::string shares_text(const CostShares& s) {
  const auto tenths = [](double share) { return std::round(1000 * share) / 10; };
  const double measured = tenths(s.measured), interpolated = tenths(s.interpolated);
  return fmt::format("{:.1f} % of its time measured, {:.1f} % interpolated, {:.1f} % analytic", measured,
                     interpolated, std::max(0.0, 100 - measured - interpolated));
}

std::string predicted_from_text(const GivenProfile& profile, const CostShares& s, const MachineCosts* costs) {
  std::string text = fmt::format("predicted from {}: {}", profile.text(), shares_text(s));
  if (!costs) return text;
  if (s.analytic >= kWorthNaming && !costs->told().empty())
    text += fmt::format(", with {} constants that it determines", costs->told().size());
  if (s.interpolated < kWorthNaming) return text;
  if (const auto out = costs->left_out(); out && out->works > 0)
    text += fmt::format(
        "; {} of its {} operations lie between others: each left out, what is interpolated is {:.0f} % off, "
        "the "
        "model alone {:.0f} %",
        out->works, profile.table.works.size(), out->interpolated_percent, out->modelled_percent);
  return text;
}

nlohmann::ordered_json shares_json(const CostShares& s) {
  return {
      {"measured_share", s.measured}, {"interpolated_share", s.interpolated}, {"analytic_share", s.analytic}};
}

nlohmann::ordered_json profile_json(const GivenProfile& profile, const MachineCosts& costs) {
  auto constants = nlohmann::ordered_json::array();
  for (const Setting& s : costs.told())
    constants.push_back({{"of", kConstantOwnerNames[static_cast<std::size_t>(s.of)]},
                         {"owner", s.owner},
                         {"key", s.key},
                         {"value", s.value}});
  nlohmann::ordered_json left_out = nullptr;
  if (const auto out = costs.left_out(); out && out->works > 0)
    left_out = {{"measured_operations", out->works},
                {"interpolated_error_percent", out->interpolated_percent},
                {"analytic_error_percent", out->modelled_percent}};
  return {{"file", profile.file},
          {"machine", profile.table.machine},
          {"date", profile.table.date},
          {"measured_operations", profile.table.works.size()},
          {"left_out", left_out},
          {"constants", constants},
          {"outside_GiB", costs.outside_GiB() > 0 ? nlohmann::ordered_json(costs.outside_GiB()) : nullptr}};
}

}  // namespace sextant
