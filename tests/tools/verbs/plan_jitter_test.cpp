// `sextant plan` and `sextant simulate` where steps jitter: the expected step, and ranking by the mean or a percentile.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/plan/plan_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/whole_grid.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/plan_question.hpp"

namespace sextant {
namespace {

using namespace plan_question;

// What is stated of stragglers and of the network is a part of the step, which the plan file has too.
TEST(Plan, JitterIsAPartOfTheSimulatedStep) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const auto answer = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--plan", "tp2.pp2.dp4.z1.mbs1", "--json"});
    const auto outcome = call_in_full(small_question("simulate", more));
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    auto j = nlohmann::json::parse(outcome.out);
    double sum = j.at("stragglers_and_host_s");
    for (const auto& [name, seconds] : j.at("breakdown_s").items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, j.at("prediction").at("step_time_s").get<double>(), 1e-9 * sum);
    return j;
  };
  const auto still = answer({});
  EXPECT_EQ(still.at("breakdown_s").at("jitter"), 0);
  EXPECT_FALSE(still.contains("undisturbed_step_time_s"));
  const auto varying =
      answer({"--set", "jitter.compute_sigma=0.05", "--set", "jitter.network_sigma=0.2", "-o", path});
  const double step = varying.at("prediction").at("step_time_s"),
               without = still.at("prediction").at("step_time_s"),
               jitter = varying.at("breakdown_s").at("jitter");
  EXPECT_NEAR(varying.at("undisturbed_step_time_s").get<double>(), without, 1e-9 * without);
  EXPECT_NEAR(step - without, jitter, 1e-9 * step);
  EXPECT_GT(jitter, 0.05 * without);
  EXPECT_GT(varying.at("p90_step_time_s").get<double>(), step);
  EXPECT_LT(varying.at("prediction").at("mfu").get<double>(), still.at("prediction").at("mfu").get<double>());
  EXPECT_EQ(varying.at("notes").size(), still.at("notes").size());
  const PlanFile file = load_plan_file(path);
  EXPECT_NEAR(file.prediction.step_time_s.value, step, 1e-9 * step);
  const auto text = call_in_full(
      small_question("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--set", "jitter.compute_sigma=0.05"}));
  EXPECT_NE(text.out.find("under the stated jitter"), std::string::npos) << text.out;
}

TEST(Plan, JitterRanksAnew) {
  const std::vector<std::string> jitter = {"--straggler-sigma",   "0.03", "--network-sigma", "0.2", "--fix",
                                           "gr=on,pg=on,b=0,lb=1"};
  for (const std::string by : {"expected", "p90"}) {
    auto more = jitter;
    more.insert(more.end(), {"--rank-by", by});
    const auto j = json_of(more);
    EXPECT_EQ(j.at("rank_by"), by);
    double last = 0;
    for (const auto& r : j.at("ranked")) {
      const double measure = number(r, by == "p90" ? "p90_step_time_s" : "expected_step_time_s");
      EXPECT_GE(measure, last);
      last = measure;
      EXPECT_GT(number(r, "expected_step_time_s"), number(r, "undisturbed_step_time_s"));
      EXPECT_EQ(number(r, "expected_step_time_s"), number(r, "step_time_s"));
      EXPECT_GE(number(r, "p90_step_time_s"), number(r, "expected_step_time_s"));
    }
  }
  EXPECT_EQ(call_in_full(small_question("plan", {"--rank-by", "p90"})).code, ExitCode::usage)
      << "no jitter is stated";
  EXPECT_EQ(json_of({"--straggler-sigma", "0.03", "--rank-by", "p90"}).at("notes").size(), 0u);
  const auto unread = json_of({"--straggler-sigma", "0.03"}).at("notes");
  ASSERT_EQ(unread.size(), 1u);
  EXPECT_NE(unread[0].get<std::string>().find("--rank-by"), std::string::npos) << unread;
  const auto table = call_in_full(
      small_question("plan", {"--rank-by", "p90", "--straggler-sigma", "0.02", "--fix", "pp=1"}), 80);
  EXPECT_NE(table.out.find("p90 s  slower %"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("faster without jitter"), std::string::npos) << table.out;
}

// What bears a network that varies much may be far slower on a steady one: it is found without a hint.
TEST(Plan, JitterIsBorneAsWellAsAnyPinnedLayoutBearsIt) {
  const auto best = [](const std::string& by, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"plan",
                                    "--model",
                                    "llama-2-13b",
                                    "--cluster",
                                    sextant::testing::whole_grid() ? "8x8xa100-80gb" : "4x8xa100-80gb",
                                    "--global-batch",
                                    sextant::testing::whole_grid() ? "256" : "128",
                                    "--set",
                                    "fabric.bandwidth_GBps=25",
                                    "--rank-by",
                                    by,
                                    "--straggler-sigma",
                                    "0.02",
                                    "--network-sigma",
                                    "0.5",
                                    "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const auto j = nlohmann::json::parse(call_in_full(all).out);
    return j.at("ranked").at(0).at(by + "_step_time_s").get<double>();
  };
  const double p90 = best("p90", {}), expected = best("expected", {});
  for (const char* pinned : {"pp=8", "tp=8"}) EXPECT_LE(p90, 1.01 * best("p90", {"--fix", pinned})) << pinned;
  EXPECT_LE(expected, 1.01 * best("expected", {"--fix", "pp=8"}));
}

// Whichever verb writes the plan of a machine that varies, its step is the expected one.
TEST(Plan, WritesTheExpectedStepAsSimulateDoes) {
  const TempDir dir;
  const std::string planned = (dir.path() / "planned.json").string(),
                    simulated = (dir.path() / "simulated.json").string();
  for (const std::string by : {"expected", "p90"}) {
    ASSERT_EQ(
        call_in_full(small_question("plan", {"--rank-by", by, "--straggler-sigma", "0.03", "--network-sigma",
                                             "0.2", "--fix", "gr=on,pg=on,b=0,lb=1", "-o", planned}))
            .code,
        ExitCode::ok);
    ASSERT_EQ(call_in_full({"simulate", "--plan", planned, "-o", simulated}).code, ExitCode::ok);
    const PlanFile a = load_plan_file(planned), b = load_plan_file(simulated);
    ASSERT_NE(a.cluster.jitter, JitterSpec{});
    EXPECT_EQ(a.plan, b.plan);
    EXPECT_DOUBLE_EQ(a.prediction.step_time_s.value, b.prediction.step_time_s.value) << by;
    EXPECT_DOUBLE_EQ(a.prediction.step_time_s.upper, b.prediction.step_time_s.upper) << by;
    EXPECT_DOUBLE_EQ(a.prediction.tokens_per_s_per_gpu, b.prediction.tokens_per_s_per_gpu) << by;
  }
}

// Text, JSON and the file of one answer have the same figures.
TEST(Plan, HasOneHeadlineUnderJitter) {
  const TempDir dir;
  const std::string path = (dir.path() / "plan.json").string();
  for (const std::string by : {"expected", "p90"}) {
    const std::vector<std::string> asked = {
        "--rank-by", by,      "--straggler-sigma",    "0.03", "--network-sigma",
        "0.4",       "--fix", "gr=on,pg=on,b=0,lb=1", "-o",   path};
    const std::string text = unwrapped(call_in_full(small_question("plan", asked)).out);
    const PlanPrediction file = load_plan_file(path).prediction;
    const auto best = json_of(asked).at("ranked").at(0);
    ASSERT_TRUE(file.jitter);
    EXPECT_EQ(file.jitter->rank_by, by == "p90" ? RankBy::p90 : RankBy::expected);
    EXPECT_EQ(number(best, "step_time_s"), file.step_time_s.value);
    EXPECT_EQ(number(best, "step_time_s_lower"), file.step_time_s.lower);
    EXPECT_EQ(number(best, "step_time_s_upper"), file.step_time_s.upper);
    EXPECT_EQ(number(best, "expected_step_time_s"), file.step_time_s.value);
    EXPECT_EQ(number(best, "undisturbed_step_time_s"), file.jitter->undisturbed_step_time_s);
    EXPECT_EQ(number(best, "p90_step_time_s"), file.jitter->p90_step_time_s);
    EXPECT_EQ(number(best, "tokens_per_s_per_gpu"), file.tokens_per_s_per_gpu);
    EXPECT_LT(file.jitter->p90_step_time_s, file.step_time_s.upper);
    EXPECT_NEAR(file.breakdown_s.at("jitter"), file.step_time_s.value - file.jitter->undisturbed_step_time_s,
                1e-12);
    const std::string best_block = text.substr(text.find(" best: "));
    for (const std::string& said :
         {fmt::format("step {:.3f} s, within {:.3f} to {:.3f} s", file.step_time_s.value,
                      file.step_time_s.lower, file.step_time_s.upper),
          fmt::format("{:.3f} s or more in one step of ten", file.jitter->p90_step_time_s),
          fmt::format("{:.3f} s undisturbed", file.jitter->undisturbed_step_time_s)})
      EXPECT_NE(best_block.find(said), std::string::npos) << said << '\n' << text;
    EXPECT_NE(unwrapped(call_in_full({"simulate", "--plan", path}).out)
                  .find(fmt::format("{:.3f} s or more in one step of ten", file.jitter->p90_step_time_s)),
              std::string::npos);
  }
}

}  // namespace
}  // namespace sextant
