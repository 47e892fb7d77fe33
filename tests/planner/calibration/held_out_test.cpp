// Fits to parts of the runs, scored on what they did not see. Half a minute: nightly.
#include "planner/calibration/held_out.hpp"

#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/measured.hpp"

namespace sextant {
namespace {

TEST(HeldOut, LargerClustersDevicesAndFeatures) {
  SEXTANT_NEEDS_MEASURED();
  const auto presets = test::preset_dir();
  const HeldOut h =
      held_out(test::all_runs(), load_framework_map(presets), presets, load_calibration_rules(presets));
  std::map<std::string, double> error;
  for (const Extrapolation& e : h.extrapolations) {
    fmt::print("{:24} fitted {:4}, scored {:4} of {:2} sources: {:5.2f} %, bias {:+5.2f} %, inside {:.2f}\n",
               e.held_out, e.fitted, e.rows, e.sources, e.mape, e.bias, e.coverage);
    EXPECT_GT(e.fitted, 0) << e.held_out;
    EXPECT_GT(e.rows, 0) << e.held_out;
    error[e.held_out] = e.mape;
  }
  // Asked: 7 % of larger clusters. The others as they are reached, with a little room.
  EXPECT_LE(error.at("more than 64 GPUs"), 7.0);
  EXPECT_LE(error.at("context parallelism"), 4.8);
  EXPECT_LE(error.at("fp8"), 6.0);
  EXPECT_LE(error.at("ZeRO 0 beside TP"), 7.8);
  EXPECT_LE(error.at("B200-SXM6-180GB"), 6.6);
  EXPECT_LE(error.at("H100-SXM5-80GB"), 9.8);
}

}  // namespace
}  // namespace sextant
