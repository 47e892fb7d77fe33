// What `sextant plan` says of layouts beside the fastest: lower-risk ties, and the chance to run out of memory.
#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/plan_question.hpp"

namespace sextant {
namespace {

using namespace plan_question;

TEST(Plan, NamesATieThatIsBetterKnown) {
  const std::vector<std::string> ask = {"plan",
                                        "--model",
                                        "llama-3-8b",
                                        "--cluster",
                                        "2x8xh100",
                                        "--seq-len",
                                        "4096",
                                        "--global-batch",
                                        "256",
                                        "--limit",
                                        "oo=0,po=off,ao=0",
                                        "--set",
                                        "device.memory_GiB=76"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ask.begin(), ask.end());
    return call_in_full(more);
  };
  const auto j = nlohmann::json::parse(with({"--json"}).out);
  const std::string key = j.at("lower_risk_tie");
  const auto& ranked = j.at("ranked");
  const auto width = [](const nlohmann::json& r) {
    return r.at("step_time_s_upper").get<double>() / r.at("step_time_s").get<double>() - 1;
  };
  const auto tie =
      std::find_if(ranked.begin(), ranked.end(), [&](const auto& r) { return r.at("key") == key; });
  ASSERT_NE(tie, ranked.end());
  EXPECT_TRUE(tie->at("tie").get<bool>());
  EXPECT_LE(1.8 * width(*tie), width(ranked.front()) * 1.0001);
  const std::string text = unwrapped(with({}).out);
  EXPECT_NE(text.find(" %, since it fills more than nine tenths of the memory"), std::string::npos) << text;
  EXPECT_NE(text.find(key), std::string::npos);
  // The best stands alone in the table, and what has a lower risk is told all the same.
  EXPECT_NE(unwrapped(with({"--top", "1"}).out).find("ties with #1 at lower risk: "), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(with({"--top", "1", "--json"}).out).contains("lower_risk_tie"));
}

TEST(Plan, FindsWhatTiesAndHasRoom) {
  const std::vector<std::string> ask = {
      "plan",           "--model", "llama-2-13b", "--cluster", "2x8xa100-80gb", "--seq-len", "2048",
      "--global-batch", "256",     "--top",       "1"};
  std::vector<std::string> json = ask;
  json.emplace_back("--json");
  const auto j = nlohmann::json::parse(call_in_full(json).out);
  const auto &best = j.at("ranked").at(0), &lower_risk = j.at("lower_risk");
  EXPECT_LT(lower_risk.at("plan").at("micro_batch"), best.at("plan").at("micro_batch"));
  EXPECT_LT(lower_risk.at("slower_share"), 0.02);
  EXPECT_TRUE(lower_risk.at("tie").get<bool>());
  EXPECT_LT(lower_risk.at("chance_of_overflow"), 0.05);
  EXPECT_GT(best.at("chance_of_overflow"), 0.1);
  const auto width = [](const nlohmann::json& r) {
    return r.at("step_time_s_upper").get<double>() / r.at("step_time_s").get<double>() - 1;
  };
  EXPECT_LE(1.8 * width(lower_risk), width(best) * 1.0001);  // as lower_risk_tie is defined
  const std::string key = lower_risk.at("key"), fix = lower_risk.at("fix"),
                    text = unwrapped(call_in_full(ask).out);
  EXPECT_NE(fix.find("mbs=2"), std::string::npos) << fix;
  EXPECT_NE(text.find("ties with #1 at lower risk: " + key), std::string::npos) << text;
  EXPECT_NE(text.find("--fix " + fix), std::string::npos) << text;
  // What it is told to ask for holds that layout.
  std::vector<std::string> fixed = json;
  fixed.insert(fixed.end(), {"--fix", fix});
  auto again = nlohmann::json::parse(call_in_full(fixed).out);
  EXPECT_LE(again.at("ranked").at(0).at("step_time_s"), lower_risk.at("step_time_s"));
  EXPECT_NE(text.find("--fix " + fix + " --max-oom-chance 0.05 asks"), std::string::npos) << text;
  fixed.insert(fixed.end(), {"--max-oom-chance", lower_risk.at("max_oom_chance").dump()});
  again = nlohmann::json::parse(call_in_full(fixed).out);
  EXPECT_LE(again.at("ranked").at(0).at("step_time_s"), lower_risk.at("step_time_s"));
  EXPECT_LT(again.at("ranked").at(0).at("chance_of_overflow"), 0.05);
}

// What is faster is on the host, however much room it is left: the kind is told that has some.
TEST(Plan, FindsWhatTiesWithMoreOnTheHost) {
  std::vector<std::string> ask = {
      "plan", "--model",        "llama-3-8b", "--cluster", "1x8xa100-40gb",       "--seq-len",
      "2048", "--global-batch", "256",        "--set",     "device.memory_GiB=38"};
  const std::string text = unwrapped(call_in_full(ask).out);
  EXPECT_NE(text.find("OOM risk below 5 %); #1 may run out of memory. --fix oo="), std::string::npos) << text;
  ask.emplace_back("--json");
  const auto j = nlohmann::json::parse(call_in_full(ask).out);
  const auto &best = j.at("ranked").at(0), &lower_risk = j.at("lower_risk");
  EXPECT_GT(best.at("chance_of_overflow"), 0.1);
  EXPECT_LT(lower_risk.at("chance_of_overflow"), 0.05);
  EXPECT_LT(lower_risk.at("slower_share"), 0.02);
  EXPECT_GT(lower_risk.at("plan").at("optimizer_offload"), best.at("plan").at("optimizer_offload"));
  // What is proved is of the same steps.
  EXPECT_EQ(best.at("gained_by_refinement_share"), 0);
  EXPECT_DOUBLE_EQ(j.at("best_bound_s"), best.at("step_time_s"));
}

// Who is about to start a run sees in the table which layouts may run out of memory, which surely fits, and what asks for such.
TEST(Plan, TellsWhichLayoutsMayRunOutOfMemoryAndWhichIsSafe) {
  const std::vector<std::string> ask = {"plan",      "--model",       "llama-3-8b",
                                        "--cluster", "2x8xa100-80gb", "--global-batch",
                                        "256",       "--set",         "device.memory_GiB=76"};
  const auto with = [&](std::vector<std::string> more, int columns = 80) {
    more.insert(more.begin(), ask.begin(), ask.end());
    return call_in_full(more, columns);
  };
  const auto j = nlohmann::json::parse(with({"--json"}).out);
  const auto& ranked = j.at("ranked");
  ASSERT_GE(ranked.at(0).at("chance_of_overflow"), 0.05);
  const auto safe =
      std::ranges::find_if(ranked, [](const auto& r) { return r.at("chance_of_overflow") < 0.05; });
  ASSERT_NE(safe, ranked.end());
  EXPECT_EQ(j.at("fastest_safe"), safe->at("key"));
  const auto text = with({}).out;
  EXPECT_NE(text.find("  OOM %"), std::string::npos) << text;
  const auto tells = [](const std::string& out, const std::string& what) {
    return unwrapped(out).find(what) != std::string::npos;
  };
  EXPECT_TRUE(tells(text, fmt::format("the fastest of these with an OOM risk below 5 % is #{}: {}",
                                      safe - ranked.begin() + 1, safe->at("key").get<std::string>())))
      << text;
  EXPECT_TRUE(tells(with({"--top", "1"}).out,
                    "Its OOM risk is not below 5 %. To require that: --max-oom-chance 0.05."));
  EXPECT_TRUE(nlohmann::json::parse(with({"--top", "1", "--json"}).out).at("fastest_safe").is_null());
  // What it names finds layouts that do, the fastest of the whole space.
  const auto asked = nlohmann::json::parse(with({"--max-oom-chance", "0.05", "--json"}).out);
  for (const auto& r : asked.at("ranked")) EXPECT_LE(r.at("chance_of_overflow"), 0.05);
  EXPECT_LE(asked.at("ranked").at(0).at("step_time_s"), safe->at("step_time_s"));
  EXPECT_GE(asked.at("ranked").at(0).at("step_time_s").get<double>(),
            ranked.at(0).at("step_time_s").get<double>() * (1 - 1e-9));
  EXPECT_TRUE(tells(asked.at("notes").dump(), "69.3 of 76.0 GiB alone"));
  // Negative controls: nothing to be said of what surely fits.
  const auto sure = with({"--max-oom-chance", "0.05"}).out;
  EXPECT_EQ(sure.find("OOM %"), std::string::npos) << sure;
  EXPECT_FALSE(tells(sure, "surely fits"));
  EXPECT_NE(with({"--max-oom-chance", "0.05", "--wide"}).out.find("OOM %"), std::string::npos);
}

TEST(Plan, SaysWhatFitsWithoutTheLimitOfTheChance) {
  const auto none = call_in_full(small_question("plan", {"--max-oom-chance", "1e-14"}));
  EXPECT_EQ(none.code, ExitCode::no_feasible_plan);
  const auto text = unwrapped(none.err);
  EXPECT_NE(text.find("without --max-oom-chance: tp2."), std::string::npos) << none.err;
  // A limit that leaves less than the framework itself takes is the user's: nothing is said of all devices.
  const auto least = call_in_full(small_question("plan", {"--max-oom-chance", "1e-15"}));
  EXPECT_EQ(least.code, ExitCode::no_feasible_plan);
  EXPECT_EQ(least.err.find("however many devices"), std::string::npos) << least.err;
  EXPECT_EQ(none.err.substr(none.err.rfind("next: ")).find("--max-oom-chance"), std::string::npos)
      << none.err;
  EXPECT_EQ(call_in_full(small_question("plan", {"--max-oom-chance", "1.5"})).code, ExitCode::usage);
}

TEST(Plan, SaysNothingOfSurerTiesWhereTheBestIsSure) {
  const auto j = nlohmann::json::parse(call_in_full(small_question("plan", {"--json"})).out);
  EXPECT_LT(j.at("ranked").at(0).at("chance_of_overflow"), 0.05);
  EXPECT_FALSE(j.contains("lower_risk"));
}

// The best of a nearly full device says how likely it runs out; one with room says nothing of it.
TEST(Plan, AChanceOfRunningOutIsPrinted) {
  const std::vector<std::string> full = {"--model",        "llama-3-8b", "--cluster", "2x8xh100",
                                         "--global-batch", "256",        "--set",     "device.memory_GiB=76"};
  const auto said = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), full.begin(), full.end());
    return std::regex_search(call_in_full(arguments).out, std::regex("OOM risk [0-9]"));
  };
  EXPECT_TRUE(said({"simulate", "--plan", "tp1.pp1.dp16.z2.mbs2.b100M"}));
  EXPECT_FALSE(said({"simulate", "--plan", "tp1.pp1.dp16.z2.mbs1.b100M"}));
  EXPECT_TRUE(said({"plan"}));
  EXPECT_FALSE(said({"plan", "--fix", "mbs=1,oo=0,ao=0"}));
}

}  // namespace
}  // namespace sextant
