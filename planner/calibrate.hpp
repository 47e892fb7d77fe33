// Which constants do measured step times speak for? Least squares on the logarithm of time with a prior on every
// constant (Gauss-Newton, Huber weights): what the rows cannot tell stays where it was, and the result says which
// constants moved, how far and how sure that is. Constants are of a device generation, a software stack or a fabric;
// none is of a row, a model or a layout.
//
// Ignores memory (planner/calibrate_memory) and errors that rows of one source share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/validate.hpp"

namespace sextant {

enum class KnobOf : std::uint8_t { device, stack, fabric };

// One constant that may move. Moves are relative: sigma 0.1 means that a factor of 1.1 is one standard deviation.
struct Knob {
  KnobOf of = KnobOf::device;
  std::string owner;  // device generation, stack or fabric by name; empty = all generations
  std::string key;    // of CostConstants, StackKernels or FabricSpec, as in the presets' JSON
  double prior = 0, sigma = 0.1;
  double low = 0, high = 0;
};

// Which keys may move and how far: tools/presets/calibration/step_time.json. `cold` priors ignore what whole runs have
// taught: middle of the kernel tables' bounds, and for a stack the values of its class.
struct KnobRule {
  KnobOf of = KnobOf::device;
  std::string key;
  bool per_generation = false;  // of a device constant: one value each, else one for all
  double cold = 0;  // cold prior; 0 = the preset's value, or the middle of its bounds where it has some
  double sigma = 0.1;
  double low_factor = 0.5, high_factor = 2.0;  // bounds, relative to the prior
};
struct StackClass {
  std::string name;
  std::vector<std::string> stacks;
  std::vector<std::pair<std::string, double>> values;  // class value by key
};
struct CalibrationRules {
  double noise = 0.05;         // relative error of one row that is nobody's fault
  double common_sigma = 0.05;  // of the factor that all runs of one user share
  std::vector<KnobRule> knobs;
  std::vector<StackClass> classes;
};
CalibrationRules load_calibration_rules(const std::filesystem::path& preset_dir);

// The knobs that these rows can touch.
std::vector<Knob> knobs_of(std::span<const RunRow>, const FrameworkMap&,
                           const std::filesystem::path& preset_dir, const CalibrationRules&,
                           bool cold = false);

struct KnobFit {
  Knob knob;
  double value = 0;
  double sigma = 0;  // relative, after the fit
  bool identified() const { return sigma < 0.7 * knob.sigma; }
};

struct Calibration {
  std::vector<KnobFit> constants;
  std::vector<double> covariance;  // of the logarithms, row by row
  double common = 1.0;             // factor on every step, what no constant explains
  int rows = 0;
  double mape_before = 0, mape_after = 0;  // percent, of the rows fitted
};

// Rows without a measured time are left out. Two to three rows are enough to move the common factor.
Calibration calibrate(std::span<const RunRow>, const FrameworkMap&, const std::filesystem::path& preset_dir,
                      const CalibrationRules&, std::span<const Knob>);

std::vector<RunPrediction> predict_calibrated(std::span<const RunRow>, const FrameworkMap&,
                                              const std::filesystem::path& preset_dir, const Calibration&);

// What would a newcomer see? For every source with at least `min_rows` timed rows: the constants are fitted to all
// other sources from cold priors, its own stack keeps its class values and its facts; then again after a few of its
// rows. Errors in percent over all its rows (after the few rows: over the others, mean of `draws` draws, predictions
// moved linearly).
struct LeftOut {
  std::string source;
  int rows = 0;
  double mape = 0, median = 0;
  double mape_few = 0, median_few = 0;
};
struct LeaveOutOptions {
  int min_rows = 7;
  int few = 5, draws = 20;
  std::uint64_t seed = 1;
  int fit_rows_per_source = 50;  // at most so many of each other source enter the fit
};
std::vector<LeftOut> leave_one_source_out(std::span<const RunRow>, const FrameworkMap&,
                                          const std::filesystem::path& preset_dir, const CalibrationRules&,
                                          const LeaveOutOptions& = {});

}  // namespace sextant
