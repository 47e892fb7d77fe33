// --profile of the verbs that predict: a table of measured works (`sextant profile -o`), what it says about the device, and
// how an answer tells what rests on it.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/stack_spec.hpp"
#include "core/timeline/work_profile.hpp"
#include "cost_models/analytic.hpp"
#include "cost_models/profiled.hpp"
#include "planner/simulation/cost_shares.hpp"
#include "planner/simulation/setting.hpp"

namespace sextant {

struct GivenProfile {
  std::string file;
  WorkProfile table;
  std::string text() const;  // "profile.json (NVIDIA H200, 2026-11-20)"
};

// Throws ConfigError naming file, key and what is expected when it was taken on another device, or holds no work.
GivenProfile load_profile_of(const std::string& file_or_name, const DeviceSpec&,
                             const std::filesystem::path& presets);

// Prices on a machine: the analytic model, and over it the table of a profile, if one is given.
//
// What the table does not tell is priced with constants of the device (and of this runtime's host time) that the profile
// tells by the works it has and by what was measured of the machine alone (planner/calibration/profile_priors, planner/simulation/machine_samples),
// unless `calibrated` states some: beside measured times, times of a faster machine would be a bias. Exchanges inside a node
// that no plan has timed are interpolated between those of the machine. Constants of networks stay: they are part of the
// group that an exchange was measured in.
class MachineCosts {
 public:
  // `profile` may be null; it is read here alone. What of device and stack a user has `stated`, by key, no profile tells.
  MachineCosts(const ClusterSpec&, const StackSpec&, const std::vector<Setting>& calibrated,
               const GivenProfile*, const std::filesystem::path& presets,
               const std::vector<std::string>& stated = {});
  MachineCosts(const MachineCosts&) = delete;
  MachineCosts& operator=(const MachineCosts&) = delete;

  // Its stack is the one given, with what the profile or `calibrated` tells of it: interference too.
  const AnalyticCostModel& analytic() const { return analytic_; }
  // With a profile its table, over the analytic model.
  const CostModel& best() const { return table_ ? static_cast<const CostModel&>(*table_) : analytic_; }
  // With a profile: how well its table tells of its own works.
  std::optional<LeftOutWorks> left_out() const {
    return table_ ? std::optional(table_->left_out()) : std::nullopt;
  }
  // Constants told by the profile; none without one.
  const std::vector<Setting>& told() const { return told_; }
  // Of the device's memory beside the buffers that are planned, as the profile has seen it: in the place of the stack's. 0: not told.
  double outside_GiB() const { return outside_GiB_; }

 private:
  std::vector<Setting> told_;
  double outside_GiB_;
  AnalyticCostModel analytic_;
  std::optional<ProfiledCostModel> table_;
};

// "93.1 % of its time measured, 4.0 % interpolated, 2.9 % analytic"; they add up as they are printed.
std::string shares_text(const CostShares&);
// "predicted from profile.json (NVIDIA H200, 2026-11-20): 93.1 % of its time measured, ...". With costs also how well what was
// interpolated may be known, where that is a part of it.
std::string predicted_from_text(const GivenProfile&, const CostShares&, const MachineCosts* = nullptr);
nlohmann::ordered_json shares_json(const CostShares&);
// "file", "machine", "date", "measured_operations", "left_out", "constants", "outside_GiB".
nlohmann::ordered_json profile_json(const GivenProfile&, const MachineCosts&);

}  // namespace sextant
