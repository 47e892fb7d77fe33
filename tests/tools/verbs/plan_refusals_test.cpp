// What `sextant plan` refuses, and how: before it searches, with one exit code for each reason, and without a file.
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/plan_question.hpp"
#include "tools/inputs/plan_options.hpp"

namespace sextant {
namespace {

using namespace plan_question;

TEST(Plan, RefusalsFitTheTerminal) {
  for (const int columns : {80, 120}) {
    const auto outcome = call_in_full(
        {"plan", "--model", "stories-15m", "--cluster", "laptop", "--global-batch", "1", "--seq-len", "256"},
        columns, columns);
    EXPECT_EQ(outcome.code, ExitCode::no_feasible_plan);
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), columns) << line;
    EXPECT_NE(outcome.err.find("; 1 sequence of"), std::string::npos) << outcome.err;
    // Not the layout's doing: the stack alone takes more than there is.
    EXPECT_NE(outcome.err.find("megatron-core itself"), std::string::npos) << outcome.err;
  }
}

TEST(Plan, OptionsThatExcludeEachOtherAreRefused) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--deadline", "30d", "--tokens", "2T"},
           {"--objective", "fewest-gpus", "--deadline", "30d"},
           {"--objective", "fewest-gpus", "--deadline", "30", "--tokens", "2T"},
           {"--objective", "fewest-gpus", "--deadline", "30d", "--tokens", "many"},
           {"--objective", "cheapest"},
           {"--scale", "16,8"},
           {"--scale", "8,...,16"},
           {"--scale", "1,2,...,1000000,x"},
           {"--scale", "8,16", "-o", "plan.json"},
           {"--scale", "8,16", "--objective", "least-memory"},
           {"--pareto", "--scale", "8,16"},
           {"--pareto", "--rank-by", "p90"},
           {"--price-per-gpu-hour", "-1"},
           {"--straggler-sigma", "2"}})
    EXPECT_EQ(call_in_full(small_question("plan", more)).code, ExitCode::usage)
        << fmt::format("{}", fmt::join(more, " "));
  EXPECT_EQ(parse_sizes("8,16,...,512"), (std::vector<int>{8, 16, 32, 64, 128, 256, 512}));
  EXPECT_EQ(parse_sizes("8,16,24,...,48"), (std::vector<int>{8, 16, 24, 32, 40, 48}));
  EXPECT_EQ(parse_sizes("24"), std::vector<int>{24});
  EXPECT_DOUBLE_EQ(parse_duration("1.5d", "--deadline").v, 129600);
  EXPECT_DOUBLE_EQ(parse_tokens("15T", "--tokens"), 15e12);
}

TEST(Plan, WhatCanNeverBeIsSaidAtOnceWithOneExitCode) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--fix", "lb=3"}, {"--limit", "mbs>=1000"}, {"--fix", "schedule=gpipe"}})
    for (const bool json : {false, true}) {
      auto all = more;
      if (json) all.push_back("--json");
      const auto outcome = call_in_full({"plan", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb",
                                         all[0], all[1], json ? "--json" : "--wide"});
      EXPECT_EQ(outcome.code, ExitCode::no_feasible_plan) << outcome.err;
      if (!json) {
        EXPECT_EQ(outcome.out, "");
        EXPECT_NE(outcome.err.find("no layout is possible"), std::string::npos);
      }
    }
}

// A framework that takes more than a device has fits no model: nothing else is the reason, and nothing else is tried.
TEST(Plan, AStackThatFillsTheDeviceByItselfIsTheReason) {
  const auto outcome = call_in_full(
      {"plan", "--model", "stories-260k", "--cluster", "laptop", "--seq-len", "256", "--global-batch", "32"});
  EXPECT_EQ(outcome.code, ExitCode::no_feasible_plan);
  for (const char* part :
       {"megatron-core itself takes 5.0 GiB", "of the 2.0 that there are", "sextant's own runtime",
        "next: sextant plan --model stories-260k --cluster laptop --stack sextant"})
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  for (const char* part : {"smallest change", "fewest GPUs", "GPUs either"})
    EXPECT_EQ(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  const auto fits = call_in_full({"plan", "--model", "stories-260k", "--cluster", "laptop", "--seq-len",
                                  "256", "--global-batch", "32", "--stack", "sextant"});
  EXPECT_EQ(fits.code, ExitCode::ok) << fits.err;
}

TEST(Plan, NothingFeasibleSaysWhyAndWritesNothing) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const auto outcome = call_in_full({"plan", "--model", "llama-2-70b", "--cluster", "1x8xa100-40gb", "--fix",
                                     "tp=8,pp=1,cp=1,oo=0,po=off,ao=0", "-o", path});
  EXPECT_EQ(outcome.code, ExitCode::no_feasible_plan);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("no layout is possible"), std::string::npos);
  EXPECT_NE(outcome.err.find("smallest change: GPUs of"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("fewest GPUs: "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("next: sextant plan --model llama-2-70b --cluster 1x8xa100-40gb"),
            std::string::npos)
      << outcome.err;
  // What fits may be too slow to be of use: both say how slow.
  std::size_t steps = 0;
  for (std::size_t at = 0; (at = outcome.err.find(" s a", at)) != std::string::npos; ++at) ++steps;
  EXPECT_EQ(steps, 2) << outcome.err;
  const auto json = call_in_full({"plan", "--model", "llama-2-70b", "--cluster", "1x8xa100-40gb", "--fix",
                                  "tp=8,pp=1,cp=1,oo=0,po=off,ao=0", "--json"});
  const auto would_fit = nlohmann::json::parse(json.out).at("would_fit");
  EXPECT_GT(would_fit.at("step_time_s"), 0);
  EXPECT_TRUE(would_fit.at("cause").is_null());
  const auto indivisible = call_in_full(
      {"plan", "--model", "llama-2-7b", "--cluster", "1x8xa100-40gb", "--fix", "tp=3", "--json"});
  EXPECT_EQ(nlohmann::json::parse(indivisible.out).at("would_fit").at("cause"),
            "tp is 3, expected a divisor of the 8 GPUs");
  EXPECT_FALSE(std::filesystem::exists(path));
}

// Searches that share a budget have uneven parts of it, which nobody gave.
TEST(Plan, ABudgetThatIsSpentIsSaidSo) {
  const auto outcome =
      call_in_full({"plan", "--model", "llama-3.1-405b", "--cluster", "2048x8xh100", "--seq-len", "4096",
                    "--global-batch", "1024", "--budget-s", "0.05", "--json"});
  const auto answer = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(answer["exact"], false);
  EXPECT_EQ(answer["stopped"], "the time for the search is spent");
}

TEST(Plan, BadOptionsAreUsageErrors) {
  EXPECT_EQ(call_in_full({"plan"}).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small_question("plan", {"--top", "0"})).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small_question("plan", {"--fix", "tpp=4"})).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small_question("plan", {"--top"})).code, ExitCode::usage);
  EXPECT_NE(call_in_full(small_question("plan", {"-o", "/nonexistent/plan.json"})).code, ExitCode::ok);
}

}  // namespace
}  // namespace sextant
