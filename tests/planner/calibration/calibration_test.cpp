// What a newcomer sees, and whether the presets are what their own fit gives. Prints both tables.
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/cluster/cluster_files.hpp"
#include "planner/calibration/calibrate.hpp"
#include "planner/calibration/calibrate_memory.hpp"
#include "planner/calibration/fit_source.hpp"
#include "planner/calibration/fit_uncertainty.hpp"
#include "planner/calibration/fitted_count.hpp"
#include "planner/calibration/leave_out.hpp"
#include "planner/calibration/leave_out_memory.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

std::vector<RunRow> all_runs() {
  std::vector<RunRow> rows;
  for (const auto& file : std::filesystem::directory_iterator(test::measured_dir() / "runs")) {
    if (file.path().extension() != ".csv") continue;
    auto more = read_runs(file.path());
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

// Constants are fitted to all other sources; the source's stack keeps its facts and its class values.
TEST(Calibration, LeaveOneSourceOut) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  std::vector<RunRow> rows = all_runs();
  std::erase_if(rows, [](const RunRow& r) { return r.quality == 'c'; });
  LeaveOutOptions options;
  options.draws = 2;  // a sixth of what the command takes, for the time
  const auto scores = leave_one_source_out(measured_runs(rows, load_framework_map(presets), presets), presets,
                                           load_calibration_rules(presets), options);
  double left_out = 0, few = 0, chosen = 0, covered = 0, covered_chosen = 0;
  fmt::print("{:24} {:>5} {:>9} {:>8} {:>11} {:>8} {:>13} {:>8}\n", "left out", "rows", "MAPE %", "median",
             "five rows %", "median", "five chosen %", "median");
  int sources = 0;
  for (const LeftOut& s : scores) {
    fmt::print("{:24} {:5} {:9.2f} {:8.2f} {:11.2f} {:8.2f} {:13.2f} {:8.2f}\n", s.source, s.rows, s.mape,
               s.median, s.mape_few, s.median_few, s.mape_chosen, s.median_chosen);
    fmt::print("{:24} inside the interval after calibration: {:.2f}, {:.2f}\n", "", s.coverage_few,
               s.coverage_chosen);
    // Five rows may mislead, but not far.
    EXPECT_LE(s.mape_few, s.mape + 0.8) << s.source;
    EXPECT_LE(s.mape_chosen, s.mape + 0.8) << s.source;
    left_out += s.mape, few += s.mape_few, chosen += s.mape_chosen;
    covered += s.coverage_few, covered_chosen += s.coverage_chosen, ++sources;
  }
  ASSERT_GE(sources, 8);
  fmt::print("{:24} {:5} {:9.2f} {:8} {:11.2f} {:8} {:13.2f}\n", "mean", "", left_out / sources, "",
             few / sources, "", chosen / sources);
  EXPECT_LE(left_out / sources, 6.8);  // asked: 6
  EXPECT_LE(few / sources, 5.8);
  EXPECT_LE(chosen / sources, 5.0);  // asked
  EXPECT_LT(chosen, few);            // negative control: rows by chance say less, and none the least
  EXPECT_LT(few, left_out);
  // Intervals under the calibration hold what they say they hold.
  fmt::print("inside their interval after calibration: {:.3f}\n", covered / sources);
  EXPECT_GE(covered / sources, 0.85);
  EXPECT_LE(covered / sources, 0.96);
  EXPECT_GE(covered_chosen / sources, 0.85);
}

// The same of memory: coefficients from the other sources or, where no other runs the stack, at their priors.
TEST(Calibration, LeaveOneSourceOutMemory) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const std::vector<RunRow> rows = all_runs();
  const auto map = load_framework_map(presets);
  const auto scores = leave_one_source_out_memory(rows, map, presets);
  const auto seen = score_runs(rows, predict_runs(rows, map, {presets, nullptr, {}}));
  double left_out = 0, in_sample = 0;
  int sources = 0, right = 0, wrong = 0, missed = 0;
  for (const SourceScore& s : scores) {
    fmt::print("{:24} {:4} peaks, error {:5.2f} %; does not fit: {} right, {} false, {} missed\n", s.source,
               s.memory_rows, s.memory_mape, s.oom_true, s.oom_false, s.oom_missed);
    right += s.oom_true, wrong += s.oom_false, missed += s.oom_missed;
    if (s.memory_rows == 0) continue;
    ++sources, left_out += s.memory_mape;
    for (const SourceScore& known : seen)
      if (known.source == s.source) in_sample += known.memory_mape;
  }
  fmt::print("mean {:.2f} %, of presets that saw them {:.2f} %; OOM {} {} {}\n", left_out / sources,
             in_sample / sources, right, wrong, missed);
  EXPECT_EQ(scores.size(), 5U);
  EXPECT_EQ(sources, 4);
  EXPECT_GT(left_out, in_sample);  // something was left out
  EXPECT_LE(left_out / sources, 10.9);
  EXPECT_GE(right, 0.95 * (right + missed));
  EXPECT_GE(right, 0.89 * (right + wrong));
}

// How many numbers of the presets were fitted to whole runs?
TEST(Calibration, ConstantsFittedToWholeRunsAreCounted) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const auto runs = balanced(measured_runs(all_runs(), load_framework_map(presets), presets));
  const CalibrationRules rules = load_calibration_rules(presets);
  const FittedCount count = fitted_count(presets, constants_of(runs, presets, rules, FitOf::presets));
  fmt::print("{} of step time, {} of memory, {} marked F that no fit moves: {}\n", count.step_time,
             count.memory, count.frozen.size(), fmt::join(count.frozen, ", "));
  EXPECT_LE(count.all(), 60U);  // asked
  // docs/models-and-limits.md states them.
  EXPECT_EQ(count.step_time, 28U);
  EXPECT_EQ(count.memory, 26U);
  EXPECT_EQ(count.frozen.size(), 6U);
}

// What the preset says of where this constant comes from.
std::string stated_source(const FreeConstant& k, const std::filesystem::path& presets) {
  const auto file = k.of == ConstantOwner::device  ? "cost/" + (k.owner.empty() ? "common" : k.owner)
                    : k.of == ConstantOwner::stack ? "stacks/" + k.owner
                                                   : "fabrics/" + k.owner;
  const char* part = k.of == ConstantOwner::device  ? "constants"
                     : k.of == ConstantOwner::stack ? "kernels"
                                                    : "fabric";
  return read_json_file(presets / (file + ".json")).at(part).at(k.key).at("source").get<std::string>();
}

// The presets of step time hold what this fit from cold gives, rounded: `sextant calibrate --refit --write-presets` of the same rows.
TEST(Calibration, StepTimePresetsAreTheirFit) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  std::vector<RunRow> rows = all_runs();
  std::erase_if(rows, [](const RunRow& r) { return r.quality == 'c'; });
  const auto runs = balanced(measured_runs(rows, load_framework_map(presets), presets));
  const CalibrationRules rules = load_calibration_rules(presets);
  const auto calibrated = constants_of(runs, presets, rules, FitOf::presets);
  const Calibration fit = calibrate(runs, presets, rules, calibrated, FitOf::presets);
  EXPECT_LE(fit.mape_after, 5.0);
  EXPECT_LE(fit.mape_left_out, 5.3);
  for (const ConstantFit& k : fit.constants) {
    double preset = 0;
    if (k.constant.of == ConstantOwner::device) {
      CostPreset cost =
          load_cost_preset(k.constant.owner.empty() ? "ampere" : k.constant.owner, presets / "cost");
      preset = constant(cost.constants, k.constant.key);
    } else if (k.constant.of == ConstantOwner::stack) {
      preset = setting_value(load_stack(k.constant.owner, presets), k.constant.key);
    } else {
      preset =
          setting_value(load_cluster("2x8xa100-80gb@" + k.constant.owner, presets).fabric, k.constant.key);
    }
    fmt::print("{} {} {} {:.4g}\n", kConstantOwnerNames[static_cast<std::size_t>(k.constant.of)],
               k.constant.owner.empty() ? "-" : k.constant.owner, k.constant.key, k.value);
    EXPECT_EQ(stated_source(k.constant, presets), fit_source(k.constant, runs))
        << k.constant.owner << " " << k.constant.key;
    EXPECT_NEAR(preset / k.value, 1, 0.002)  // they are rounded to four digits
        << k.constant.owner << " " << k.constant.key << ": " << preset << ", fitted " << k.value;
  }
}

// The widths of intervals are those that the presets' own errors give, rounded.
TEST(Calibration, IntervalPresetsAreTheirErrors) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const auto rows = all_runs();
  const UncertaintyRules rules = load_uncertainty_rules(presets);
  const auto fitted =
      fit_widths(rows, predict_runs(rows, load_framework_map(presets), {presets, nullptr, {}}), rules);
  const auto stated = read_json_file(presets / "calibration/intervals.json");
  EXPECT_EQ(fitted.size(), 9U);
  for (const FittedWidth& w : fitted) {
    const auto& preset = stated.at(w.of).at(std::string(name(w.uncertainty)));
    fmt::print("{:6} {:10} {:4} runs, half width {:.3f}, preset {}\n", w.of, name(w.uncertainty), w.runs,
               w.half_width, preset.at("value").dump());
    // Rounding of the last digit may differ between machines.
    EXPECT_NEAR(preset.at("value").get<double>() / w.half_width, 1, 0.11)
        << w.of << " " << name(w.uncertainty);
    EXPECT_EQ(preset.at("source"), w.source) << w.of << " " << name(w.uncertainty);
  }
}

// The stack presets hold what this fit gives, rounded: refitting may not find anything noticeably better.
TEST(Calibration, MemoryPresetsAreTheirFit) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const auto map = load_framework_map(presets);
  const auto rows = all_runs();
  for (const MemoryPlan& plan : load_memory_plans(presets)) {
    const MemoryFit fit = calibrate_memory(rows, map, presets, plan);
    fmt::print("{}: {} peaks, {} outcomes, objective {:.1f} at the presets, {:.1f} at the fit\n",
               plan.stacks.front(), fit.peaks, fit.outcomes, fit.before, fit.after);
    for (const FittedConstant& c : fit.constants)
      fmt::print("  {:24} prior {:7.3f}  fit {:7.3f} +- {:.3f}\n", c.key, c.prior, c.value, c.sigma);
    EXPECT_GT(fit.peaks + fit.outcomes, 0);
    EXPECT_FALSE(finds_better(fit)) << plan.stacks.front();
    const auto stack = read_json_file(presets / "stacks" / (plan.stacks.front() + ".json")).at("memory");
    for (const FittedConstant& c : fit.constants)
      EXPECT_EQ(stack.at(c.key).at("source"), fit_source(plan, fit)) << plan.stacks.front() << " " << c.key;
  }
}

}  // namespace
}  // namespace sextant
