// Widths of intervals: from the presets alone, and from errors with known quantiles.
#include "planner/simulation/uncertainty.hpp"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "planner/calibration/fit_uncertainty.hpp"
#include "tests/support/measured.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

// The presets with one text of the widths replaced.
std::filesystem::path changed(const TempDir& folder, const std::string& from, const std::string& to) {
  std::string text = read_text_file(test::preset_dir() / "calibration/intervals.json");
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  std::filesystem::create_directories(folder.path() / "calibration");
  std::ofstream(folder.path() / "calibration/intervals.json") << text;
  return folder.path();
}

TEST(UncertaintyClass, WidthsAndBordersAreThoseOfThePresets) {
  const TempDir folder;
  const UncertaintyRules rules = load_uncertainty_rules(test::preset_dir());
  const UncertaintyRules early = load_uncertainty_rules(
      changed(folder, R"("exposed_share": {"value": 0.2)", R"("exposed_share": {"value": 0.05)"));
  const ClusterSpec cluster;
  const StackSpec fitted;
  StackSpec exact;
  exact.memory.exact_tensors = true;
  EXPECT_EQ(uncertainty_of(rules, {}, cluster, fitted, 0.5, 0.1), UncertaintyClass::none);
  EXPECT_EQ(uncertainty_of(early, {}, cluster, fitted, 0.5, 0.1), UncertaintyClass::exposed);
  EXPECT_EQ(uncertainty_of(rules, {}, cluster, fitted, 0.95, 0.1), UncertaintyClass::near_full);
  EXPECT_EQ(uncertainty_of(rules, {}, cluster, exact, 0.95, 0.1), UncertaintyClass::none);
  // The narrower interval of many context-parallel ranks hides nothing that is harder to predict.
  ParallelPlan plan;
  plan.cp = 8;
  EXPECT_EQ(uncertainty_of(rules, plan, cluster, fitted, 0.5, 0.1), UncertaintyClass::many_cp);
  EXPECT_EQ(uncertainty_of(rules, plan, cluster, fitted, 0.95, 0.1), UncertaintyClass::near_full);
  plan.activation_offload = 4;
  EXPECT_EQ(uncertainty_of(rules, plan, cluster, fitted, 0.5, 0.1), UncertaintyClass::offload);
  EXPECT_LT(rules.step_half_width(UncertaintyClass::many_cp),
            rules.step_half_width(UncertaintyClass::offload));
  for (int d = 0; d < kUncertaintyClasses; ++d) {
    const auto c = static_cast<UncertaintyClass>(d);
    EXPECT_GT(rules.step_half_width(c), 0.05);
    EXPECT_GT(rules.memory_half_width(c, fitted), 0.05);
    EXPECT_LT(rules.memory_half_width(c, exact), 0.05);
    EXPECT_GT(rules.memory_half_width(c, exact), 0);
  }
}

TEST(UncertaintyClass, AMissingWidthIsNamed) {
  const TempDir folder;
  try {
    load_uncertainty_rules(changed(folder, "\"tp_crosses\"", "\"tp_croses\""));
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("tp_crosses"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("intervals.json"), std::string::npos) << e.what();
  }
}

// 100 runs that are 1 to 100 % off: 90 of them within 90 %. One run fewer than is asked for gives no width.
TEST(UncertaintyClass, AFittedWidthHoldsItsShareOfTheRuns) {
  UncertaintyRules rules = load_uncertainty_rules(test::preset_dir());
  std::vector<RunRow> rows(100);
  std::vector<RunPrediction> predictions(100);
  for (std::size_t i = 0; i < 100; ++i) {
    const double off = 1 + 0.01 * static_cast<double>(i + 1);
    rows[i].step_time = Seconds(i % 2 == 0 ? off : 1 / off);
    predictions[i].step_s = 1;
    predictions[i].uncertainty = UncertaintyClass::exposed;
  }
  const auto widths = fit_widths(rows, predictions, {}, rules);
  ASSERT_EQ(widths.size(), 1U);
  EXPECT_EQ(widths[0].uncertainty, UncertaintyClass::exposed);
  EXPECT_EQ(widths[0].runs, 100);
  EXPECT_NEAR(widths[0].half_width, rules.fitted_share, 1e-9);
  EXPECT_NE(widths[0].source.find("90 % of 100 published runs"), std::string::npos) << widths[0].source;
  // Errors of the presets count where they are larger, and only there.
  std::vector<RunPrediction> presets = predictions;
  for (RunPrediction& p : presets) p.step_s = 0.5;
  EXPECT_GT(fit_widths(rows, predictions, presets, rules)[0].half_width, widths[0].half_width);
  EXPECT_NE(fit_widths(rows, predictions, presets, rules)[0].source.find("predicted by the presets"),
            std::string::npos);
  for (RunPrediction& p : presets) p.step_s = 1.2;
  for (std::size_t i = 0; i < 100; ++i) rows[i].step_time = Seconds(1.2);
  EXPECT_LT(fit_widths(rows, presets, presets, rules)[0].half_width, 0.01);
  rules.fewest_runs = 101;
  EXPECT_TRUE(fit_widths(rows, predictions, {}, rules).empty());
}

}  // namespace
}  // namespace sextant
