// `sextant calibrate` as a user meets it: from a log to a better prediction, from a shortlist, and bad input.
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/file_io.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/call.hpp"

namespace sextant {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kQuestion = {"--model", "llama-2-13b", "--cluster", "8x8xa100-80gb"};

std::vector<std::string> with_question(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), kQuestion.begin(), kQuestion.end());
  return arguments;
}

double simulated(const std::string& calibration) {
  auto arguments = with_question({"simulate", "--json", "--plan", "tp2.pp2.dp16.z1.mbs1.sel"});
  if (!calibration.empty()) arguments.insert(arguments.end(), {"--calibration", calibration});
  return Json::parse(call(arguments).out).at("prediction").at("step_time_s").get<double>();
}

TEST(CalibrateVerb, FromALogToABetterPrediction) {
  const TempDir folder;
  const std::string log = folder.write("train.log", call({"calibrate", "--example"}).out).string();
  const std::string file = (folder.path() / "c.json").string();
  const auto outcome = call(with_question({"calibrate", "--log", log, "-o", file, "--json"}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json run = Json::parse(outcome.out).at("runs").at(0);
  const double measured = run.at("measured_s");
  EXPECT_NEAR(measured, 31.25, 0.1);  // the example's steady step
  const double before = run.at("before_s"), after = run.at("after_s");
  EXPECT_LT(std::abs(after / measured - 1), std::abs(before / measured - 1));
  // The verbs that predict use it; without it nothing changes.
  EXPECT_LT(std::abs(simulated(file) / measured - 1), std::abs(simulated("") / measured - 1));
}

TEST(CalibrateVerb, TakesATriedShortlist) {
  const TempDir folder;
  const std::string list = (folder.path() / "shortlist.json").string();
  const auto planned = call({"plan", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--fix",
                             "cp=1,oo=0,po=0,ao=0", "--shortlist", "3", "-o", list});
  ASSERT_EQ(planned.code, ExitCode::ok) << planned.err;
  Json tried = Json::parse(read_text_file(list));
  ASSERT_GE(tried.at("plans").size(), 2U);
  ASSERT_LE(tried.at("plans").size(), 3U);
  EXPECT_EQ(call({"calibrate", "--tried", list}).code, ExitCode::bad_input);  // nothing measured yet
  for (auto& t : tried["plans"]) {
    EXPECT_TRUE(t.at("measured_step_s").is_null());
    t["measured_step_s"] =
        1.1 * t.at("plan_file").at("prediction").at("step_time_s").at("value").get<double>();
  }
  folder.write("shortlist.json", tried.dump());
  const auto outcome = call({"calibrate", "--tried", list, "--json"});
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json calibration = Json::parse(outcome.out).at("calibration");
  EXPECT_NEAR(calibration.at("error_before_percent"), 100 * (1 - 1 / 1.1), 1.0);
  EXPECT_LT(calibration.at("error_after_percent"), 4.0);
}

TEST(CalibrateVerb, SaysWhatIsMissing) {
  const TempDir folder;
  EXPECT_EQ(call({"calibrate"}).code, ExitCode::usage);
  const std::string text = folder.write("x.log", "loss 1.0\n").string();
  const auto outcome = call(with_question({"calibrate", "--log", text}));
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  EXPECT_NE(outcome.err.find("elapsed time per iteration"), std::string::npos) << outcome.err;
  EXPECT_EQ(call({"calibrate", "--nccl", text}).code, ExitCode::usage);
  EXPECT_EQ(call({"plan", "--shortlist", "3", "--model", "llama-2-7b", "--cluster", "1x8xa100-80gb"}).code,
            ExitCode::usage);
}

}  // namespace
}  // namespace sextant
