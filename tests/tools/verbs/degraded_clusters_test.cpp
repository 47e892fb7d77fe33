// `sextant plan` and `sextant simulate` on clusters with slow or missing GPUs: fewer of them may be faster, and how many are
// worth it is found.
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/plan_question.hpp"

namespace sextant {
namespace {

using namespace plan_question;

// 13 nodes divide a batch of 256 badly; 12 do not, and hold a deadline that 13 miss.
TEST(Plan, FewerGpusThanAllMayHoldADeadlineThatAllMiss) {
  const auto ask = [](const char* deadline) {
    return call_in_full({"plan", "--model", "llama-2-7b", "--cluster", "13x8xa100-80gb", "--global-batch",
                         "256", "--limit", "tp<=2,pp<=13,cp=1,mbs<=2,oo=0,ao=0,po=off", "--objective",
                         "fewest-gpus", "--tokens", "100B", "--deadline", deadline});
  };
  EXPECT_NE(ask("80h").out.find("fewest: 96 of 104 GPUs"), std::string::npos) << ask("80h").out;
  EXPECT_EQ(ask("40h").out.find("fewest:"), std::string::npos);
}

// The fastest fills the memory to the brim: known to 20 %. A tie needs less, and is known to 10 %.
TEST(Plan, WithAGpuMissingFewerMayBeFaster) {
  const std::vector<std::string> question = {"plan",  "--model", "llama-2-7b", "--cluster",  "2x8xh100",
                                             "--top", "1",       "--json",     "--budget-s", "100"};
  EXPECT_FALSE(nlohmann::json::parse(call_in_full(question).out).contains("fewer_gpus"));
  auto broken = question;
  for (const char* defect : {"defects[0].node=1", "defects[0].gpu=2", "defects[0].missing=true"})
    broken.insert(broken.end(), {"--set", defect});
  const auto answer = nlohmann::json::parse(call_in_full(broken).out);
  EXPECT_EQ(answer.at("gpus"), 15);
  EXPECT_LT(answer.at("fewer_gpus").at("gpus"), 15);
  EXPECT_LT(answer.at("fewer_gpus").at("step_time_s"), answer.at("ranked")[0].at("step_time_s"));
}

// The words of a command that an answer prints, as a shell reads them.
std::vector<std::string> words_of(const std::string& command) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : command) {
    if (c == '\'')
      quoted = !quoted;
    else if (c == ' ' && !quoted)
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

// All ranks wait for a node at a tenth of its speed, or it idles in a stage without layers: the others alone are faster,
// though their number divides no better.
TEST(Plan, SaysThatTheOthersAreFasterWithoutASlowNode) {
  const std::vector<std::string> ask = {
      "plan", "--model", "llama-2-13b",      "--cluster", "4x8xa100-80gb",    "--global-batch",
      "96",   "--limit", "oo=0,ao=0,po=off", "--set",     "defects[0].node=1"};
  const auto with = [&](const std::string& factor, bool json) {
    auto all = ask;
    // A budget of its own, so that the other search is not cut short where the machine is busy.
    all.insert(all.end(), {"--set", "defects[0].compute_factor=" + factor, "--budget-s", "100"});
    if (json) all.emplace_back("--json");
    return call_in_full(all);
  };
  const auto j = nlohmann::json::parse(with("0.1", true).out);
  ASSERT_TRUE(j.contains("fewer_gpus"));
  const auto& fewer = j.at("fewer_gpus");
  EXPECT_EQ(fewer.at("gpus"), 24);
  EXPECT_EQ(fewer.at("left_out_nodes"), nlohmann::json({1}));
  EXPECT_LT(fewer.at("step_time_s"), j.at("ranked")[0].at("step_time_s"));
  const std::string command = fewer.at("command");
  EXPECT_EQ(command,
            "sextant plan --model llama-2-13b --cluster 4x8xa100-80gb --global-batch 96 --set nodes=3 --set "
            "'defects=[]' --limit 'oo=0,ao=0,po=off'");
  // It is what that command finds, and the text prints it whole.
  auto words = words_of(command);
  words.erase(words.begin());
  words.emplace_back("--json");
  const auto again = nlohmann::json::parse(call_in_full(words).out);
  EXPECT_EQ(again.at("gpus"), 24);
  EXPECT_EQ(again.at("ranked")[0].at("key"), fewer.at("key"));
  EXPECT_EQ(again.at("ranked")[0].at("step_time_s"), fewer.at("step_time_s"));
  const auto text = with("0.1", false).out;
  EXPECT_NE(unwrapped(text).find("24 of the 32 GPUs, without node 1, are "), std::string::npos) << text;
  EXPECT_NE(text.find(command_lines(80, "  ", command)), std::string::npos) << text;
  // Negative control: what a hundredth slows is worth more than nothing.
  EXPECT_FALSE(nlohmann::json::parse(with("0.99", true).out).contains("fewer_gpus"));
}

// A defect that stays is in the command, by its node's number among those that stay.
TEST(Plan, ThePartOfAClusterThatIsFasterKeepsItsOtherDefects) {
  const auto j = nlohmann::json::parse(
      call_in_full({"plan", "--model", "llama-2-7b", "--cluster", "4x8xa100-80gb", "--global-batch", "96",
                    "--limit", "oo=0,ao=0,po=off,cp=1,mbs<=2", "--set",
                    R"(defects=[{"node":0,"compute_factor":0.1},{"node":2,"gpu":1,"compute_factor":0.97}])",
                    "--json"})
          .out);
  ASSERT_TRUE(j.contains("fewer_gpus"));
  const auto& fewer = j.at("fewer_gpus");
  EXPECT_EQ(fewer.at("left_out_nodes"), nlohmann::json({0}));
  const std::string command = fewer.at("command");
  EXPECT_NE(command.find(R"('defects=[{"compute_factor":0.97,"gpu":1,"node":1}]')"), std::string::npos)
      << command;
}

// A layout for fewer GPUs sits on the best nodes, whichever these are, as the best of --scale does.
TEST(Simulate, FewerRanksThanGpusSitOnTheBestNodes) {
  const auto with = [](const std::string& defects) {
    return nlohmann::json::parse(
        call_in_full(small_question("simulate", {"--plan", "tp2.pp1.dp4.z1.mbs1", "--set", "nodes=3", "--set",
                                                 "defects=" + defects, "--json"}))
            .out);
  };
  const auto step = [](const nlohmann::json& j) {
    return j.at("prediction").at("step_time_s").get<double>();
  };
  const auto sound = with("[]"), first = with(R"([{"node":0,"compute_factor":0.5}])"),
             last = with(R"([{"node":2,"compute_factor":0.5}])"),
             links = with(R"([{"node":0,"node_link_factor":0.5},{"node":1,"compute_factor":0.5}])"),
             all = with(R"([{"node":0,"compute_factor":0.5},{"node":1,"compute_factor":0.5},)"
                        R"({"node":2,"compute_factor":0.5}])");
  EXPECT_EQ(step(first), step(sound));
  EXPECT_EQ(step(last), step(sound));
  EXPECT_EQ(step(links), step(sound));
  EXPECT_GT(step(all), 1.5 * step(sound));  // negative control: a slow node that is needed counts
  const auto said = [](const nlohmann::json& j) { return j.at("notes").dump(); };
  EXPECT_NE(said(first).find("8 of the cluster's 24 GPUs are used; 16 are idle"), std::string::npos)
      << said(first);
  EXPECT_NE(said(first).find("nodes 0 and 2 are left out"), std::string::npos) << said(first);
  EXPECT_NE(said(links).find("nodes 0 and 1 are left out"), std::string::npos) << said(links);
  EXPECT_EQ(said(last).find("left out"), std::string::npos) << said(last);
  EXPECT_EQ(said(sound).find("left out"), std::string::npos) << said(sound);
}

// One rule: the layout of a size that --scale finds takes as long under `simulate --plan`.
TEST(Simulate, AgreesWithTheScalingCurveOfADegradedCluster) {
  const std::vector<std::string> slow = {"--set", "nodes=3", "--set",
                                         R"(defects=[{"node":1,"compute_factor":0.5}])", "--json"};
  auto curve = small_question("plan", slow), one = small_question("simulate", slow);
  curve.insert(curve.end(), {"--scale", "16"});
  const auto best = nlohmann::json::parse(call_in_full(curve).out).at("scale")[0].at("best");
  one.insert(one.end(), {"--plan", best.at("key")});
  const auto j = nlohmann::json::parse(call_in_full(one).out);
  EXPECT_NEAR(j.at("prediction").at("step_time_s").get<double>(), best.at("step_time_s").get<double>(), 1e-9);
}

// 63 divide neither batch nor model; fewer do.
TEST(Plan, WithAGpuMissingNoLayoutMayBePossibleButOnFewer) {
  const std::vector<std::string> question = {"plan",
                                             "--model",
                                             "llama-2-13b",
                                             "--global-batch",
                                             "128",
                                             "--cluster",
                                             "8x8xa100-80gb",
                                             "--limit",
                                             "cp=1,mbs<=2,oo=0,ao=0,po=off",
                                             "--set",
                                             R"(defects=[{"node":3,"gpu":2,"missing":true}])"};
  const auto text = call_in_full(question);
  EXPECT_EQ(text.code, ExitCode::no_feasible_plan);
  EXPECT_NE(text.err.find("of the 63 GPUs do: "), std::string::npos) << text.err;
  auto with_json = question;
  with_json.push_back("--json");
  const auto answer = call_in_full(with_json);
  EXPECT_EQ(answer.code, ExitCode::no_feasible_plan);
  const auto j = nlohmann::json::parse(answer.out);
  EXPECT_TRUE(j.at("ranked").empty());
  const auto& fewer = j.at("fewer_gpus");
  EXPECT_LT(fewer.at("gpus"), 63);
  EXPECT_TRUE(fewer.at("fits"));
  EXPECT_NE(text.err.find(fewer.at("key").get<std::string>()), std::string::npos) << text.err;
  EXPECT_TRUE(j.at("would_fit").at("key").is_null());
  EXPECT_TRUE(j.at("would_fit").at("step_time_s").is_null());
}

// Part of a node holds what fewer whole nodes do not: 17 GPUs hold nothing.
TEST(Plan, TheFewestGpusNeedNotBeWholeNodes) {
  const std::vector<std::string> question = {"plan",          "--model",        "llama-2-70b", "--cluster",
                                             "4x8xa100-80gb", "--global-batch", "720",         "--seq-len",
                                             "2048",          "--fix",          "oo=0",        "--json"};
  auto fewest = question, curve = question;
  fewest.insert(fewest.end(), {"--objective", "fewest-gpus", "--top", "1"});
  const auto j = nlohmann::json::parse(call_in_full(fewest).out);
  EXPECT_EQ(j.at("fewest_gpus"), 18);
  EXPECT_EQ(j.at("next_smaller_gpus"), 17);
  EXPECT_EQ(j.at("all_sizes_tried_to"), 17);
  EXPECT_TRUE(j.at("all_sizes_tried"));
  curve.insert(curve.end(), {"--scale", "16,17,18"});
  const auto scale = nlohmann::json::parse(call_in_full(curve).out).at("scale");
  EXPECT_TRUE(scale.at(0).at("best").is_null() && scale.at(1).at("best").is_null());
  EXPECT_EQ(scale.at(2).at("best").at("key"), j.at("ranked").at(0).at("key"));
  std::erase(curve, "--json");
  const auto text = call_in_full(curve).out;  // of 80 columns: why a row is empty is never left out
  EXPECT_NE(text.find("nothing fits"), std::string::npos) << text;
}

// Why a size has no layout: what does not divide is not too large.
TEST(Plan, ASizeThatNothingDividesIsSaidToBeSo) {
  const std::vector<std::string> ask = {"plan",      "--model",       "llama-2-7b",
                                        "--cluster", "1x8xa100-80gb", "--global-batch",
                                        "7",         "--fix",         "tp=1,pp=1,cp=1"};
  auto divides = ask, fits = ask, many = ask;
  divides.insert(divides.end(), {"--scale", "4,7"});
  const auto text = call_in_full(divides).out;
  EXPECT_NE(text.find("nothing divides"), std::string::npos) << text;
  EXPECT_EQ(text.find("nothing fits"), std::string::npos) << text;
  fits.insert(fits.end(), {"--scale", "1", "--set", "device.memory_GiB=1"});
  EXPECT_NE(call_in_full(fits).out.find("nothing fits"), std::string::npos) << call_in_full(fits).out;
  many.insert(many.end(), {"--scale", "1,2,3,4,...,99"});
  EXPECT_NE(unwrapped(call_in_full(many).err).find("expected at most 64 sizes, ascending numbers"),
            std::string::npos)
      << call_in_full(many).err;
}

// Of the two nodes, each under a leaf of its own.
TEST(Simulate, ADegradedNicOrUplinkSlowsOnlyWhatCrossesIt) {
  const auto step = [](const std::string& plan, std::vector<std::string> settings) {
    std::vector<std::string> arguments =
        small_question("simulate", {"--plan", plan, "--json", "--set", "fabric.leaf_nodes=1"});
    for (const auto& s : settings) arguments.insert(arguments.end(), {"--set", s});
    const auto outcome = call_in_full(arguments);
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("prediction").at("step_time_s").get<double>();
  };
  const std::vector<std::string> uplink = {"defects[0].leaf=1", "defects[0].network_factor=0.05"},
                                 nic = {"defects[0].node=1", "defects[0].nic=7",
                                        "defects[0].network_factor=0.05"};
  for (const auto& slow : {uplink, nic}) {
    EXPECT_GT(step("tp8.pp2.dp1.mbs1", slow), 1.001 * step("tp8.pp2.dp1.mbs1", {}));
    EXPECT_DOUBLE_EQ(step("tp8.pp1.dp1.mbs1.full", slow), step("tp8.pp1.dp1.mbs1.full", {}))
        << "inside the other node";
  }
}

}  // namespace
}  // namespace sextant
