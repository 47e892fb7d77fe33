// What a newcomer sees, and whether the presets are what their own fit gives. Prints both tables.
#include <cstdio>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/validate.hpp"
#include "tests/support/measured.hpp"
#include "planner/calibrate.hpp"
#include "planner/calibrate_memory.hpp"

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
  const auto scores =
      leave_one_source_out(all_runs(), load_framework_map(presets), presets, load_calibration_rules(presets));
  double left_out = 0, few = 0;
  fmt::print("{:24} {:>5} {:>9} {:>8} {:>11} {:>8}\n", "left out", "rows", "MAPE %", "median", "five rows %",
             "median");
  int sources = 0;
  for (const LeftOut& s : scores) {
    fmt::print("{:24} {:5} {:9.2f} {:8.2f} {:11.2f} {:8.2f}\n", s.source, s.rows, s.mape, s.median,
               s.mape_few, s.median_few);
    if (s.source == "deepspeed") continue;  // CPU offload: outside what the models cover
    left_out += s.mape, few += s.mape_few, ++sources;
  }
  ASSERT_GE(sources, 8);
  fmt::print("{:24} {:5} {:9.2f} {:8} {:11.2f}\n", "mean, without offload", "", left_out / sources, "",
             few / sources);
  EXPECT_LE(left_out / sources, 8.0);
  EXPECT_LE(few / sources, 6.3);
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
    EXPECT_LE(fit.before, 1.05 * fit.after + 1) << plan.stacks.front();
  }
}

}  // namespace
}  // namespace sextant
