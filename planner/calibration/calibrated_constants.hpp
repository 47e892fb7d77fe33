// Which constants of step time may be calibrated, and how they are put in the place of what the presets say. A constant
// belongs to a device generation, a software stack or a fabric; none to a row, a model or a layout.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/simulation/residual.hpp"
#include "planner/simulation/setting.hpp"
#include "planner/validation/measured_run.hpp"

namespace sextant {

// Of a device: how much longer everything on it takes, for what no other constant says (clocks, power, other jobs).
inline constexpr const char* kMachineFactor = "time_factor";

// One constant that may move. Moves are relative: sigma 0.1 means that a factor of 1.1 is one standard deviation.
struct FreeConstant {
  ConstantOwner of = ConstantOwner::device;
  std::string owner;  // device generation, stack or fabric by name; empty = all generations
  std::string key;    // of CostConstants, StackKernels or FabricSpec, as in the presets' JSON
  double prior = 0, sigma = 0.1;
  double low = 0, high = 0;
  std::vector<std::string> also = {};  // owners that have the same value: one class, one constant
  // Constants of one key and one kin are off alike: `kinship` is the correlation of their priors. Empty: of its own.
  std::string kin = {};
  double kinship = 0;
};
// What the calibrated constant at a value sets: one constant of each of its owners.
std::vector<Setting> settings_of(const FreeConstant&, double value);
// The calibrated constants with their priors at these settings, where one sets them.
std::vector<FreeConstant> rebased(std::vector<FreeConstant>, std::span<const Setting>);

// Which keys may move and how far: tools/presets/calibration/step_time.json. `cold` priors ignore what whole runs have
// taught: middle of the kernel tables' bounds, and for a stack the values of its class.
struct ConstantRule {
  ConstantOwner of = ConstantOwner::device;
  std::string key;
  bool per_generation = false;                    // of a device constant: one value each, else one for all
  bool own_only = false;                          // moves for one user's machines, never in the presets
  std::vector<std::string> presets_of;            // whose preset a refit moves; empty = every owner's
  std::vector<std::vector<std::string>> classes;  // owners that a refit gives one value
  // Cold prior: by owner, or for all (0 = the stack's class value, the middle of a device constant's bounds, or what
  // the preset says).
  std::map<std::string, double> cold_of;
  double cold = 0;
  double sigma = 0.1;
  double low_factor = 0.5, high_factor = 2.0;  // bounds, relative to the prior
  double kinship =
      0;  // correlation of the cold priors of one class of stacks, of all fabrics, of all generations
};
struct StackClass {
  std::string name;
  std::vector<std::string> stacks;
  std::vector<std::pair<std::string, double>> values;  // class value by key
};
struct CalibrationRules {
  double noise = 0.05;  // relative error of one row that is nobody's fault
  // The same for a user's few rows: what the model itself is off by, from row to row, beside its constants. Prior widths
  // are multiplied by own_width: they were stated for fits of hundreds of rows from cold, the presets are known better.
  double own_noise = 0.05, own_width = 1;
  double own_huber = 2;  // standard deviations of the noise from which on a row counts less
  double own_tolerance =
      1;  // a fit is taken unless its error left out is above so many times that of the presets
  LikenessRule own_residual;
  std::vector<ConstantRule> calibrated;
  std::vector<StackClass> classes;
  const ConstantRule& rule(const std::string& key) const;  // throws ConfigError
};
CalibrationRules load_calibration_rules(const std::filesystem::path& preset_dir);

// What is being fitted: one user's machines from the presets on, or the presets themselves, from cold.
enum class FitOf : std::uint8_t { own_runs, presets };

// The calibrated constants that these runs can touch.
std::vector<FreeConstant> constants_of(std::span<const MeasuredRun>, const std::filesystem::path& preset_dir,
                                       const CalibrationRules&, FitOf = FitOf::own_runs);

// Does the run's time depend on this constant's owner?
bool concerns(const FreeConstant&, const ResolvedRun&);

void from_json(const nlohmann::json&, ConstantRule&);

}  // namespace sextant
