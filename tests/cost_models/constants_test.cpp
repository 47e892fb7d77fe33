// Every constant of every preset is stated with unit, origin, source and date; bad files are refused.
#include "cost_models/constants.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/cluster/cluster_spec.hpp"
#include "tests/cost_models/machines.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

std::filesystem::path temporary(const std::string& name) {
  static const TempDir all;
  const auto dir = all.path() / name;
  std::filesystem::create_directories(dir);
  std::filesystem::copy(
      test::preset_dir() / "cost", dir,
      std::filesystem::copy_options::overwrite_existing | std::filesystem::copy_options::recursive);
  return dir;
}

void replace(const std::filesystem::path& file, const std::string& from, const std::string& to) {
  std::ifstream in(file);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  std::ofstream(file) << text;
}

TEST(Constants, EveryGenerationIsComplete) {
  for (const std::string_view generation : kGenerations) {
    const CostPreset preset = load_cost_preset(std::string(generation), test::preset_dir() / "cost");
    // Switches add up from Hopper on; the others need no rate of them.
    const bool in_switch = preset.constants.link_efficiency_in_switch > 0;
    const bool before_hopper = generation == "volta" || generation == "ampere" || generation == "cpu";
    EXPECT_EQ(in_switch, !before_hopper) << generation;
    // What multiprocessors do, and how many the charts of attention are of, is known of GPUs alone.
    const bool gpu = preset.generation != "cpu";
    EXPECT_EQ(preset.constants.multiprocessor_TFLOPS > 0, gpu);
    EXPECT_EQ(preset.constants.attention_multiprocessors > 0, gpu);
    EXPECT_EQ(preset.records.size() + (in_switch ? 0 : 1) + (gpu ? 0 : 2), constant_keys().size());
    for (const auto& r : preset.records) {
      EXPECT_TRUE(r.origin.size() == 1 && std::string("TFSDG").find(r.origin) != std::string::npos) << r.key;
      EXPECT_GE(r.date, "2020") << r.key;
      EXPECT_LE(r.low, r.value) << r.key;
    }
  }
}

TEST(Constants, MisspelledKeyIsRefusedWithSuggestion) {
  const auto dir = temporary("typo");
  replace(dir / "ampere.json", "\"gemm_efficiency\"", "\"gemm_eficiency\"");
  try {
    load_cost_preset("ampere", dir);
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean gemm_efficiency?"), std::string::npos) << e.what();
  }
}

TEST(Constants, AGpuWithoutTheRateOfItsMultiprocessorsIsRefused) {
  const auto dir = temporary("rateless");
  replace(dir / "hopper.json", "\"multiprocessor_TFLOPS\"", "\"time_factor\"");
  EXPECT_THROW(load_cost_preset("hopper", dir), ConfigError);
}

TEST(Constants, NegativeValueAndMissingOriginAreRefused) {
  const auto dir = temporary("negative");
  replace(dir / "ampere.json", "\"gemm_efficiency\": {\"value\": ", "\"gemm_efficiency\": {\"value\": -");
  EXPECT_THROW(load_cost_preset("ampere", dir), ConfigError);
  const auto other = temporary("origin");
  replace(other / "ampere.json", "\"origin\": \"F\", ", "");
  EXPECT_THROW(load_cost_preset("ampere", other), ConfigError);
}

TEST(Constants, UnknownGenerationNamesTheKnownOnes) {
  try {
    load_cost_preset("hoper", test::preset_dir() / "cost");
    FAIL() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean hopper?"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sextant
