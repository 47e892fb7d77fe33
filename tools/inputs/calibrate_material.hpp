// What a calibration starts from: measured runs from CSV files, logs and tried shortlists, and what profiles and tables
// of nccl-tests say of the machine itself, which is where the fit to whole steps begins.
#pragma once

#include <string>
#include <vector>

#include "planner/calibration/calibrate_network.hpp"
#include "planner/calibration/calibration_file.hpp"
#include "planner/calibration/profile_priors.hpp"
#include "tools/inputs/inputs.hpp"

namespace sextant {

struct MaterialOptions {
  QuestionOptions question;
  std::vector<std::string> runs, logs, nccl, tried, profiles;
  bool allow_other_device = false;
  bool none() const {
    return runs.empty() && logs.empty() && nccl.empty() && tried.empty() && profiles.empty();
  }
  std::vector<std::string> files() const;  // that will be read
};

// A layout that was tried and ran out of memory.
struct TriedInVain {
  RanOut what;
  double chance = 0;  // predicted
  bool foreseen() const { return chance >= 0.5; }
};

struct Material {
  std::vector<MeasuredRun> runs;
  std::vector<NetworkFit> networks;
  std::vector<ProfileFit> profiles;
  std::vector<TriedInVain> in_vain;
  std::vector<std::string> notes;     // what was taken for granted
  std::vector<std::string> warnings;  // what was left out, and where

  // What links and kernels measured by themselves say: a table of nccl-tests before a profile.
  std::vector<ConstantFit> measured_alone() const;
};

// Throws UsageError where an option is missing, ConfigError where a file says what cannot be.
Material read_material(const MaterialOptions&, const std::filesystem::path& presets, const CalibrationRules&);

}  // namespace sextant
