// Other questions of `sextant plan` than the fastest layout: the scaling curve, the cheapest tokens, the fewest GPUs, the lowest
// memory.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/plan/plan_file.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/plan_question.hpp"

namespace sextant {
namespace {

using namespace plan_question;

// On its grid values no layout holds that deadline on fewer than 64; moved, one does.
TEST(Plan, FewestGpusCountLayoutsThatAreMoved) {
  if (kSanitized) GTEST_SKIP() << "what is moved is looked for in a second";
  const auto ask = [](const char* gpus) {
    return nlohmann::json::parse(
        call_in_full({"plan", "--model", "llama-3-8b", "--cluster", "8x8xA100-PCIe-80GB", "--stack", "alpa",
                      "--seq-len", "1024", "--global-batch", "24", "--objective", "fewest-gpus", "--tokens",
                      "1e9", "--deadline", gpus, "--json"})
            .out);
  };
  const auto held = ask("5.65h");
  EXPECT_EQ(held.at("fewest_gpus"), 56);
  EXPECT_LE(held.at("ranked").at(0).at("step_time_s"), held.at("deadline_step_time_s"));
  EXPECT_TRUE(held.at("ranked").at(0).at("gained_by_rebalancing_share") > 0.05);
  EXPECT_TRUE(ask("4h").at("fewest_gpus").is_null());
}

// Of layouts that one would run: fewer GPUs do with unequal stages or something on the host, which --daring takes.
TEST(Plan, FewestGpusAreThoseOfUsualLayouts) {
  const auto ask = [](const std::vector<std::string>& more) {
    std::vector<std::string> question = {"plan",           "--model",   "llama-3.1-8b", "--cluster",
                                         "16x8xh100",      "--seq-len", "8192",         "--json",
                                         "--global-batch", "512",       "--objective",  "fewest-gpus",
                                         "--tokens",       "1T",        "--deadline",   "60d"};
    question.insert(question.end(), more.begin(), more.end());
    return nlohmann::json::parse(call(question).out);
  };
  const auto usual = ask({}), daring = ask({"--daring"});
  EXPECT_LT(daring.at("fewest_gpus"), usual.at("fewest_gpus"));
  EXPECT_TRUE(usual.at("all_sizes_tried"));
  EXPECT_TRUE(usual.at("usual_layouts_alone"));
  EXPECT_FALSE(daring.at("usual_layouts_alone"));
  const auto& plan = usual.at("ranked").at(0).at("plan");
  EXPECT_LE(usual.at("ranked").at(0).at("step_time_s"), usual.at("deadline_step_time_s"));
  EXPECT_EQ(plan.at("optimizer_offload"), 0);
  EXPECT_EQ(32 % (plan.at("pp").get<int>() * plan.at("vp").get<int>()), 0);
  // What is pinned and unusual is kept.
  const auto pinned = ask({"--fix", "oo=100"});
  EXPECT_EQ(pinned.at("ranked").at(0).at("plan").at("optimizer_offload"), 1);
}

TEST(Plan, TheScalingCurveAndTheCheapestTokens) {
  const auto curve = json_of({"--scale", "2,4,...,16", "--price-per-gpu-hour", "2"});
  ASSERT_EQ(curve.at("scale").size(), 4U);
  EXPECT_TRUE(curve.at("ranked").empty());
  double last = INFINITY;
  for (const auto& point : curve.at("scale")) {
    if (point.at("best").is_null()) continue;
    EXPECT_LT(number(point.at("best"), "step_time_s"), last);
    last = number(point.at("best"), "step_time_s");
    // Two dollars buy 3600 s of one GPU.
    EXPECT_NEAR(number(point.at("best"), "usd_per_million_tokens") *
                    number(point.at("best"), "tokens_per_s_per_gpu") * 3600,
                2e6, 1);
  }
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const auto cheap = json_of(
      {"--scale", "2,4,...,16", "--objective", "tokens-per-dollar", "--price-per-gpu-hour", "2", "-o", path});
  ASSERT_EQ(cheap.at("ranked").size(), 1U);
  for (const auto& point : cheap.at("scale"))
    if (!point.at("best").is_null()) {
      EXPECT_LE(number(cheap.at("ranked").at(0), "usd_per_million_tokens"),
                number(point.at("best"), "usd_per_million_tokens"));
    }
  const PlanFile file = load_plan_file(path);
  EXPECT_EQ(plan_key(file.plan), cheap.at("ranked").at(0).at("key"));
  EXPECT_LE(file.plan.world(), file.cluster.gpus());
}

TEST(Plan, TheFewestGpusHoldTheDeadline) {
  // 256 x 4096 tokens a step: a thousand steps.
  const auto curve = json_of({"--scale", "4,8,16"}).at("scale");
  const double step_of_8 = number(curve.at(1).at("best"), "step_time_s");
  const std::vector<std::string> deadline = {"--objective", "fewest-gpus", "--tokens", "1048576000",
                                             "--deadline"};
  auto within = deadline;
  within.push_back(fmt::format("{:.6f}h", 1.001 * step_of_8 * 1000 / 3600));
  const auto found = json_of(within);
  EXPECT_EQ(found.at("fewest_gpus"), 8);
  EXPECT_EQ(found.at("next_smaller_gpus"), 7);
  EXPECT_TRUE(found.at("all_sizes_tried"));
  EXPECT_NEAR(number(found, "deadline_step_time_s"), 1.001 * step_of_8, 1e-3);
  EXPECT_EQ(found.at("ranked").at(0).at("key"), curve.at(1).at("best").at("key"));
  auto never = deadline;
  never.push_back("0.001h");
  const auto none = call_in_full(small_question("plan", never));
  EXPECT_EQ(none.code, ExitCode::no_feasible_plan);
  EXPECT_NE(none.err.find("cannot meet the deadline"), std::string::npos) << none.err;
  never.push_back("--json");
  EXPECT_EQ(call_in_full(small_question("plan", never)).code, ExitCode::no_feasible_plan);
}

TEST(Plan, LessMemoryCostsTime) {
  const auto front = json_of({"--pareto"});
  EXPECT_TRUE(front.at("exact"));
  const auto& plans = front.at("pareto");
  ASSERT_GE(plans.size(), 3U);
  for (std::size_t i = 1; i < plans.size(); ++i) {
    EXPECT_LE(number(plans[i], "peak_memory_GiB"), 0.9 * number(plans[i - 1], "peak_memory_GiB") + 1e-6);
    EXPECT_GE(number(plans[i], "step_time_s"), number(plans[i - 1], "step_time_s") - 1e-9);
    EXPECT_LE(number(plans[i], "step_time_s"), 1.51 * number(plans[0], "step_time_s"));
  }
  const auto lean = json_of({"--objective", "least-memory"});
  EXPECT_LE(number(lean.at("ranked").at(0), "peak_memory_GiB"), number(lean, "least_memory_GiB") + 1e-9);
  EXPECT_LT(number(lean, "no_layout_within_GiB"), number(lean, "least_memory_GiB"));
  EXPECT_LE(number(lean, "least_memory_GiB"), number(plans.back(), "peak_memory_GiB") + 1e-9);
  std::uint64_t outcomes = 0;
  for (const auto& [name, count] : lean.at("outcomes").items()) outcomes += count.get<std::uint64_t>();
  EXPECT_EQ(outcomes, lean.at("space").get<std::uint64_t>());
  EXPECT_EQ(lean.at("space"), front.at("space"));
}

// What an answer rests on is on its first screen: sequences beyond a model's positions, what a stack assumes.
TEST(Plan, TheFirstAnswerSaysWhatItAssumes) {
  const auto notes = [](const Words& more) {
    const Called c = call(Words{"plan", "--model", "llama-2-7b", "--cluster", "1x8xa100-80gb", "--fix",
                                "tp=1,pp=1,cp=1,mbs=1,z=3", "--global-batch", "64"} +
                              more,
                          kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::ok) << c.err;
    const std::size_t at = c.out.find("note: ");
    return at == std::string::npos ? "" : c.out.substr(at);
  };
  EXPECT_TRUE(notes({"--seq-len", "8192"}).find("go beyond the 4096 positions") != std::string::npos);
  EXPECT_EQ(notes({"--seq-len", "4096"}), "");
  EXPECT_TRUE(notes({"--seq-len", "4096", "--stack", "torchtitan"}).find("blocks are taken as compiled") !=
              std::string::npos);
}

// Wherever layouts are listed.
TEST(Plan, TokensAreDaysInEveryTable) {
  const Words asked = {"plan",
                       "--model",
                       "llama-2-7b",
                       "--cluster",
                       "2x8xa100-80gb",
                       "--fix",
                       "tp=1,pp=1,cp=1,oo=0,ao=0",
                       "--global-batch",
                       "64"};
  for (const Words& list : {Words{"--scale", "8,16"}, Words{"--pareto"}}) {
    const Called days = call(asked + list + Words{"--tokens", "1T"}, kUnlimitedColumns);
    ASSERT_EQ(days.code, ExitCode::ok) << days.err;
    EXPECT_TRUE(says(days, "days of 1T")) << days.out;
    EXPECT_FALSE(says(call(asked + list, kUnlimitedColumns), "days of"));
  }
  const auto front =
      nlohmann::json::parse(call(asked + Words{"--pareto", "--tokens", "1T", "--json"}).out).at("pareto");
  for (const auto& one : front)
    EXPECT_NEAR(one.at("training").at("days").get<double>(),
                1e12 / one.at("tokens_per_s").get<double>() / 86400, 0.01);
}

// What is said of the least holds for the table above it, and for smaller layouts than the fast search looks at.
TEST(Plan, NothingTakesLessThanTheLowestMemory) {
  const std::vector<std::string> question = {"--model",        "llama-2-13b", "--cluster", "8x8xa100-80gb",
                                             "--global-batch", "1024",        "--seq-len", "4096"};
  auto ask = question;
  ask.insert(ask.begin(), "plan");
  ask.insert(ask.end(), {"--objective", "least-memory", "--json"});
  const auto lean = nlohmann::json::parse(call_in_full(ask).out);
  EXPECT_TRUE(lean.at("exact"));
  for (const auto& r : lean.at("ranked"))
    EXPECT_EQ(number(r, "peak_memory_GiB"), number(lean, "least_memory_GiB"));
  for (const char* other :
       {"tp8.pp1.vp1.cp8.dp1.z1.mbs1.full.oo100.nopg.tpo", "tp8.pp8.vp3.dp1.mbs1.oo100"}) {
    auto simulate = question;
    simulate.insert(simulate.begin(), "simulate");
    simulate.insert(simulate.end(), {"--plan", other, "--json"});
    const auto j = nlohmann::json::parse(call_in_full(simulate).out);
    EXPECT_GE(number(j.at("prediction"), "peak_memory_GiB"), number(lean, "least_memory_GiB")) << other;
  }
}

}  // namespace
}  // namespace sextant
