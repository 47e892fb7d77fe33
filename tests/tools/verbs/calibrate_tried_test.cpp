// `sextant calibrate --tried`: a shortlist with what was measured, or ran out of memory.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/plan/parallel_plan.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/calibrate_question.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {
namespace {

using Json = nlohmann::json;

// A shortlist of 7B on 16 A100, in which times are written.
class TriedShortlist : public testing::Test {
 protected:
  TriedShortlist() {
    const auto planned = call({"plan", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--fix",
                               "cp=1,oo=0,po=0,ao=0", "--shortlist", "3", "-o", list_});
    EXPECT_EQ(planned.code, ExitCode::ok) << planned.err;
    tried_ = Json::parse(read_text_file(list_));
  }
  ParallelPlan plan_of(std::size_t i) const {
    return parse_plan_key(tried_.at("plans").at(i).at("plan_file").at("key").get<std::string>());
  }
  // Each layout took `factor(i)` times as long as predicted.
  template <class F>
  void measure(F factor) {
    std::size_t i = 0;
    for (auto& t : tried_["plans"]) {
      t["outcome"] = nullptr;
      t["measured_step_s"] =
          factor(i++) * t.at("plan_file").at("prediction").at("step_time_s").at("value").get<double>();
    }
    save();
  }
  void save() { folder_.write("shortlist.json", tried_.dump()); }
  TempDir folder_;
  std::string list_ = (folder_.path() / "shortlist.json").string();
  Json tried_;
};

TEST_F(TriedShortlist, IsTaken) {
  ASSERT_GE(tried_.at("plans").size(), 2U);
  ASSERT_LE(tried_.at("plans").size(), 3U);
  for (std::size_t i = 1; i < tried_.at("plans").size(); ++i) {
    const ParallelPlan a = plan_of(0), b = plan_of(i);
    EXPECT_TRUE(a.tp != b.tp || a.pp != b.pp || a.zero_stage != b.zero_stage) << plan_key(b);
  }
  EXPECT_EQ(call({"calibrate", "--tried", list_}).code, ExitCode::bad_input);  // nothing measured yet
  for (const auto& t : tried_["plans"]) EXPECT_TRUE(t.at("measured_step_s").is_null());
  measure([](std::size_t) { return 1.1; });
  const auto outcome = call({"calibrate", "--tried", list_, "--json"});
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json calibration = Json::parse(outcome.out).at("calibration");
  EXPECT_NEAR(calibration.at("error_before_percent"), 100 * (1 - 1 / 1.1), 1.0);
  EXPECT_LT(calibration.at("error_after_percent"), 4.0);
  EXPECT_TRUE(Json::parse(outcome.out).at("taken"));
}

// Errors in both directions help no further run: the presets stay, and the command says so.
TEST_F(TriedShortlist, OfScatteredTimesLeavesThePresets) {
  measure([](std::size_t i) { return i % 2 == 0 ? 1.1 : 1 / 1.1; });
  const Json scattered = Json::parse(call({"calibrate", "--tried", list_, "--json"}).out);
  EXPECT_FALSE(scattered.at("taken"));
  EXPECT_GT(scattered.at("fit_error_left_out_percent"),
            scattered.at("calibration").at("error_before_percent").get<double>());
  for (const Json& c : scattered.at("calibration").at("constants")) EXPECT_EQ(c.at("preset"), c.at("value"));
  const std::string shown = call({"calibrate", "--tried", list_}).out;
  EXPECT_NE(shown.find("The presets stay"), std::string::npos) << shown;
  EXPECT_NE(shown.find("nothing was learned"), std::string::npos) << shown;
  EXPECT_EQ(shown.find("next: "), std::string::npos) << shown;
  EXPECT_EQ(shown.find("from the data"), std::string::npos) << shown;  // nothing moved
  const std::string second =
      tried_.at("plans").at(1).at("plan_file").at("key");  // the one that was faster than predicted
  EXPECT_NE(shown.find("layouts tried: " + second), std::string::npos) << shown;

  // A layout that did not fit is no time, and what to do about it is said.
  tried_["plans"][0]["measured_step_s"] = nullptr;
  tried_["plans"][0]["outcome"] = "oom";
  save();
  const std::string died = call({"calibrate", "--tried", list_}).out;
  EXPECT_NE(died.find("will be predicted to need less than that"), std::string::npos) << died;
}

TEST_F(TriedShortlist, OfMillisecondsIsRefused) {
  measure([](std::size_t) { return 1000.0; });
  const auto in_ms = call({"calibrate", "--tried", list_});
  EXPECT_EQ(in_ms.code, ExitCode::bad_input);
  EXPECT_NE(in_ms.err.find("are the times seconds"), std::string::npos) << in_ms.err;
}

// A layout that ran out of memory has no time: it is told apart, and whether that was foreseen.
TEST(CalibrateVerb, TakesTriesThatRanOutOfMemory) {
  const TempDir folder;
  const std::string list = (folder.path() / "shortlist.json").string();
  ASSERT_EQ(call({"plan", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--fix",
                  "cp=1,oo=0,po=0,ao=0", "--shortlist", "2", "-o", list})
                .code,
            ExitCode::ok);
  Json tried = Json::parse(read_text_file(list));
  ASSERT_EQ(tried.at("plans").size(), 2U);
  tried["plans"][0]["outcome"] = "oom";
  folder.write("shortlist.json", tried.dump());
  // The layout that died is not planned again, nor what is as full.
  const std::string kept = (folder.path() / "calibration.json").string();
  const auto alone = call({"calibrate", "--tried", list, "-o", kept});
  ASSERT_EQ(alone.code, ExitCode::ok) << alone.err;
  EXPECT_NE(alone.out.find("ran out of memory, which was not foreseen"), std::string::npos) << alone.out;
  const auto again = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"plan",          "--model", "llama-2-7b",          "--cluster",
                                          "2x8xa100-80gb", "--fix",   "cp=1,oo=0,po=0,ao=0", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Json::parse(call(arguments).out).at("recommended");
  };
  const Json died = tried.at("plans").at(0).at("plan_file");
  const double peak = died.at("prediction").at("peak_memory_GiB").at("value");
  EXPECT_EQ(again({}).at("key"), died.at("key"));  // negative control
  EXPECT_NE(again({"--calibration", kept}).at("key"), died.at("key"));
  EXPECT_LT(again({"--calibration", kept}).at("peak_memory_GiB"), peak);
  tried["plans"][1]["measured_step_s"] = 60;
  tried["plans"][1]["outcome"] = "ok";
  folder.write("shortlist.json", tried.dump());
  const auto outcome = call({"calibrate", "--tried", list, "--json"});
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json answer = Json::parse(outcome.out);
  EXPECT_EQ(answer.at("runs").size(), 1U);
  EXPECT_EQ(answer.at("out_of_memory").at(0).at("foreseen"), false);
  // Both at once, or another word, cannot be.
  tried["plans"][1]["outcome"] = "oom";
  folder.write("shortlist.json", tried.dump());
  EXPECT_EQ(call({"calibrate", "--tried", list}).code, ExitCode::bad_input);
  tried["plans"][1]["outcome"] = "slow";
  folder.write("shortlist.json", tried.dump());
  EXPECT_EQ(call({"calibrate", "--tried", list}).code, ExitCode::bad_input);
}

}  // namespace
}  // namespace sextant
