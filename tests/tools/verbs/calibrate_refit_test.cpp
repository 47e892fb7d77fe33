// `sextant calibrate --refit`: the presets fitted anew, their memory, and what a left-out source says.
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/csv.hpp"
#include "core/plan/stack_spec.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/calibrate_question.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {
namespace {

using Json = nlohmann::json;

TEST(CalibrateVerb, RefitShowsTheMemoryOfStacks) {
  const TempDir folder;
  const auto refitted = [&](double peak_GiB) {
    const std::string runs = nanotron_runs(folder, {peak_GiB, peak_GiB, peak_GiB});
    const auto outcome = call({"calibrate", "--refit", "--runs", runs, "--json"});
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return Json::parse(outcome.out).at("memory");
  };
  const Json low = refitted(20), high = refitted(70);
  ASSERT_EQ(low.size(), 1U);
  EXPECT_EQ(low.at(0).at("stacks"), Json::array({"nanotron"}));
  EXPECT_EQ(low.at(0).at("peaks"), 3);
  EXPECT_EQ(low.at(0).at("outcomes"), 0);
  EXPECT_LE(low.at(0).at("objective_at_fit"), low.at(0).at("objective_at_presets"));
  const Json& constants = low.at(0).at("constants");
  ASSERT_GE(constants.size(), 5U);
  for (std::size_t i = 0; i < constants.size(); ++i) {
    const Json& other = high.at(0).at("constants").at(i);
    EXPECT_EQ(constants[i].at("preset"), other.at("preset"));
    EXPECT_LE(constants[i].at("value").get<double>(), 1.01 * other.at("value").get<double>()) << constants[i];
    EXPECT_GT(constants[i].at("sigma"), 0);
  }
  EXPECT_LT(constants[0].at("value"), high.at(0).at("constants").at(0).at("value"));

  const auto text = call({"calibrate", "--refit", "--runs", nanotron_runs(folder, {20, 20, 20})});
  ASSERT_EQ(text.code, ExitCode::ok) << text.err;
  EXPECT_NE(text.out.find("memory of"), std::string::npos) << text.out;
  for (const Json& c : constants)
    EXPECT_NE(text.out.find(c.at("key").get<std::string>()), std::string::npos) << text.out;
}

TEST(CalibrateVerb, RefitWritesPresetsWithTheirSources) {
  const TempDir folder;
  const std::string runs = nanotron_runs(folder, {70, 70, 70}), to = (folder.path() / "presets").string();
  EXPECT_EQ(call({"calibrate", "--runs", runs, "--write-presets", to}).code, ExitCode::usage);
  const auto refit = [&] {
    const auto outcome = call({"calibrate", "--refit", "--runs", runs, "--write-presets", to});
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    EXPECT_NE(outcome.err.find("written: " + to), std::string::npos) << outcome.err;
    std::ifstream file(to + "/stacks/nanotron.json");
    return Json::parse(file);
  };
  const Json written = refit();
  const Json& rope = written.at("memory").at("saved_rope");
  EXPECT_EQ(rope.at("origin"), "F");
  EXPECT_EQ(rope.at("source"), "sextant calibrate --refit, memory; rows: 3 peaks, of nanotron");
  EXPECT_GT(rope.at("value"), 7);  // the presets hold 6.98, and predict less than 70 GiB
  EXPECT_EQ(written.at("kernels").at("host_forward_per_layer_us").at("source"),
            "sextant calibrate --refit, step times; rows: 3 of nanotron");
  EXPECT_EQ(load_stack("nanotron", to).memory.saved_rope, rope.at("value"));
  EXPECT_EQ(refit(), written);  // in place of those it wrote itself
  EXPECT_EQ(call({"calibrate", "--refit", "--runs", runs, "--write-presets", folder.path().string()}).code,
            ExitCode::usage);  // holds other files
}

// A source that is left out does not move its own prediction: both errors tell the same peak.
TEST(CalibrateVerb, LeavesTheMemoryOfASourceOut) {
  const TempDir folder;
  const auto error = [&](double peak_GiB) {
    const std::string runs = nanotron_runs(folder, {peak_GiB});
    const auto outcome = call({"calibrate", "--refit", "--leave-out", "--runs", runs, "--json"});
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    const Json scores = Json::parse(outcome.out).at("memory_left_out");
    EXPECT_EQ(scores.size(), 1U);
    EXPECT_EQ(scores.at(0).at("source"), "nanotron");
    EXPECT_EQ(scores.at(0).at("peaks"), 1);
    return scores.at(0).at("error_percent").get<double>() / 100;
  };
  const double predicted = 5 * (1 + error(5));  // far above what was measured
  EXPECT_GT(predicted, 10);
  EXPECT_NEAR(error(1.3 * predicted), 1 - 1 / 1.3, 1e-6);
  const auto text = call({"calibrate", "--refit", "--leave-out", "--runs", nanotron_runs(folder, {5})}).out;
  EXPECT_NE(text.find("memory, source left out"), std::string::npos) << text;
}

}  // namespace
}  // namespace sextant
