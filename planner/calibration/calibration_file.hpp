// What `sextant calibrate` leaves behind: constants in the place of the presets', with how sure each is, and the runs
// they came from. Read by every verb that predicts (--calibration FILE).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/calibration/calibrate.hpp"

namespace sextant {

struct CalibratedConstant {
  ConstantOwner of = ConstantOwner::device;
  std::string owner, key;  // the key's suffix is the unit
  double preset = 0, value = 0;
  double sigma = 0;         // relative, after the fit
  double preset_sigma = 0;  // relative, before
  bool operator==(const CalibratedConstant&) const = default;
};

// A layout that was predicted to need so much of a GPU's memory, and ran out of it.
struct RanOut {
  std::string key, stack, device;
  double predicted_peak_GiB = 0, available_memory_GiB = 0;
  bool operator==(const RanOut&) const = default;
};

// A run that was measured: its layout, and what is learned of it and those like it beyond constants.
struct CalibratedRun {
  std::string generation;
  int tp = 1, pp = 1, dp = 1;
  double micro_batch_tokens = 1, parameters = 1;
  int zero_stage = 0;
  double weight = 0;
  bool operator==(const CalibratedRun&) const = default;
};
struct CalibratedResidual {
  double sigma = 0, doublings = 1;
  std::vector<CalibratedRun> runs;
  std::vector<double> covariance, with_constants;  // as in LearnedResidual
  bool operator==(const CalibratedResidual&) const = default;
};

struct CalibrationFile {
  std::string schema = "sextant.calibration/1";
  std::vector<CalibratedConstant> constants;
  std::vector<double> covariance;  // of the logarithms of the constants, row by row
  std::optional<CalibratedResidual> residual;
  std::vector<std::string> runs;      // what was read: ids
  std::vector<std::string> profiles;  // machine and date of each
  std::vector<RanOut> out_of_memory;
  double error_before_percent = 0, error_after_percent = 0, error_left_out_percent = 0;
  std::string sextant, created;  // which version wrote it, when
  std::vector<std::string> command;
  std::vector<Setting> settings() const;
  Residual learned() const;  // empty without one
  // What plans of this stack may be predicted to need of this device's memory, in GiB: less than what ran out of it.
  std::optional<double> memory_limit_GiB(const std::string& stack, const std::string& device) const;
  bool operator==(const CalibrationFile&) const = default;
};

CalibrationFile calibration_file_of(const Calibration&);

// Throws ConfigError naming file, key and what is expected; keys that may not be calibrated are refused.
CalibrationFile load_calibration(const std::filesystem::path&);
void save_calibration(const std::filesystem::path&, const CalibrationFile&);

void to_json(nlohmann::json&, const CalibratedRun&);
void from_json(const nlohmann::json&, CalibratedRun&);
void to_json(nlohmann::json&, const CalibratedResidual&);
void from_json(const nlohmann::json&, CalibratedResidual&);
void to_json(nlohmann::json&, const RanOut&);
void from_json(const nlohmann::json&, RanOut&);
void to_json(nlohmann::json&, const CalibrationFile&);
void from_json(const nlohmann::json&, CalibrationFile&);

}  // namespace sextant
