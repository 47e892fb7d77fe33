// How many constants of the presets are fitted, and are those of memory what their fit gives? Step time: preset_fits_test.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "planner/calibration/calibrate.hpp"
#include "planner/calibration/calibrate_memory.hpp"
#include "planner/calibration/fit_source.hpp"
#include "planner/calibration/fitted_count.hpp"
#include "tests/support/measured.hpp"

namespace sextant {
namespace {

// How many numbers of the presets were fitted to whole runs?
TEST(Calibration, ConstantsFittedToWholeRunsAreCounted) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const auto runs = balanced(measured_runs(test::all_runs(), load_framework_map(presets), presets));
  const CalibrationRules rules = load_calibration_rules(presets);
  const FittedCount count = fitted_count(presets, constants_of(runs, presets, rules, FitOf::presets));
  fmt::print("{} of step time, {} of memory, {} marked F that no fit moves: {}\n", count.step_time,
             count.memory, count.frozen.size(), fmt::join(count.frozen, ", "));
  EXPECT_LE(count.all(), 60U);  // asked
  // docs/models-and-limits.md states them.
  EXPECT_EQ(count.step_time, 29U);
  EXPECT_EQ(count.memory, 25U);
  EXPECT_EQ(count.frozen.size(), 6U);
}

// The stack presets hold what this fit gives, rounded: refitting may not find anything noticeably better.
TEST(Calibration, MemoryPresetsAreTheirFit) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const auto map = load_framework_map(presets);
  const auto rows = test::all_runs();
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
