// System: runs that adapt, on CPU ranks that emulate a cluster to which events happen. Expectation: a straggler is found and a
// layout taken that bears it; a lost rank costs no step when its state has replicas, and those since the checkpoint when not; a
// rank that is back is used again; training goes on as if nothing had happened.
#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/file_io.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant::testing {
namespace {

using nlohmann::json;

constexpr const char* kCluster = R"({"name": "emulated-8", "nodes": 1, "fabric": "none",
  "device": {"name": "emulated", "generation": "cpu", "memory_GiB": 4, "memory_bandwidth_GBps": 5,
             "peak_TFLOPS": {"fp32": 0.01, "bf16": 0.01, "fp64": 0.005}, "multiprocessors": 1,
             "launch_overhead_us": 1, "host_link_GBps": 1, "power_W": 15},
  "node": {"gpus": 8, "link": "shared_memory", "link_bandwidth_GBps": 0.2, "link_latency_us": 50,
           "host_memory_GiB": 8, "host_memory_bandwidth_GBps": 20}})";

std::vector<json> lines_of(const std::filesystem::path& file) {
  std::vector<json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

class AdaptiveRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    json model = json::parse(read_text_file(SEXTANT_SOURCE_DIR "/tools/presets/models/stories-260k.json"));
    model["name"] = "twelve-layers";
    model["n_layers"] = 12;
    model["tied_embeddings"] = false;
    std::ofstream(dir_ / "model.json") << model.dump();
    std::ofstream(dir_ / "cluster.json") << kCluster;
  }
  // The folder of a run of `steps` under events; `more`: further arguments.
  std::filesystem::path go(const std::string& name, const std::string& events, int steps,
                           const std::vector<std::string>& more = {}) {
    std::ofstream(dir_ / (name + ".events")) << events;
    std::vector<std::string> args = {"run",
                                     "--model",
                                     dir_ / "model.json",
                                     "--cluster",
                                     dir_ / "cluster.json",
                                     "--seq-len",
                                     "32",
                                     "--global-batch",
                                     "16",
                                     "--steps",
                                     std::to_string(steps),
                                     "--gemms",
                                     "exact",
                                     "-o",
                                     dir_ / name};
    if (!events.empty() || !more.empty()) args.emplace_back("--emulate");
    if (!events.empty()) args.insert(args.end(), {"--inject", dir_ / (name + ".events")});
    args.insert(args.end(), more.begin(), more.end());
    called_ = call(args);
    EXPECT_EQ(called_.code, ExitCode::ok) << called_.err;
    return dir_ / name;
  }
  static std::vector<double> of_steps(const std::filesystem::path& run, const char* key) {
    std::vector<double> values;
    for (const json& step : lines_of(run / "steps.jsonl"))
      if (step.contains(key)) values.push_back(step[key]);
    return values;
  }

  TempDir dir_folder_;
  std::filesystem::path dir_ = dir_folder_.path();
  Called called_;
};

TEST_F(AdaptiveRuns, AStragglerIsFoundAndALayoutTakenThatBearsIt) {
  const auto fixed = go("fixed", "step 14 rank 3 compute x4", 20);
  auto sound = of_steps(fixed, "step_time_s");
  sound.resize(14);
  std::ranges::nth_element(sound, sound.begin() + 7);
  const double expected = of_steps(fixed, "predicted_step_time_s").front();
  if (sound[7] > 2.5 * expected)
    GTEST_SKIP() << "this machine has too much else to do: steps of " << expected << " s take " << sound[7];
  const auto adapted = go("adapted", "step 14 rank 3 compute x4", 48, {"--adapt", "--adapt-budget", "0"});
  const auto decisions = lines_of(adapted / "adaptation.jsonl");
  const auto change =
      std::ranges::find_if(decisions, [](const json& d) { return d.value("kind", "") == "change"; });
  ASSERT_NE(change, decisions.end()) << called_.out;
  EXPECT_EQ((*change)["trigger"], "drift");
  const json& evidence = (*change)["evidence"];
  EXPECT_TRUE(std::ranges::any_of(evidence, [](const json& e) {
    return e.get<std::string>().find("rank 3 (node 0, GPU 3)") != std::string::npos;
  })) << evidence;
  EXPECT_NEAR((*change)["onset"].get<double>(), 14, 3);
  EXPECT_LE((*change)["step"].get<int>(), 14 + 20);
  ASSERT_NE(change + 1, decisions.end());
  const int number = (*change)["decision"];
  EXPECT_EQ(change[1]["changed"], number);
  const double moved_GB = change[1]["moved_GB"], to_one_GB = change[1]["moved_to_one_rank_GB"];
  EXPECT_GE(8 * to_one_GB, moved_GB);
  EXPECT_LE(to_one_GB, moved_GB);
  EXPECT_LE(change[1]["moving_s"], change[1]["stood_still_s"]);
  const Called why = call({"explain", adapted, "--decision", std::to_string(number)});
  EXPECT_EQ(why.code, ExitCode::ok) << why.err;
  for (const char* told : {"rank 3 (node 0, GPU 3) computes", "layout since: ", "training stood still for",
                           "of the predicted gain"})
    EXPECT_NE(why.out.find(told), std::string::npos) << told << " in:\n" << why.out;
  EXPECT_EQ(why.out.find("GB of state moved in") != std::string::npos, moved_GB > 0) << why.out;
  EXPECT_EQ(call({"explain", adapted, "--decision", "99"}).code, ExitCode::usage);
  EXPECT_EQ(call({"explain", dir_, "--decision", "1"}).code, ExitCode::usage);

  // Each step once, and nothing of the change is seen in what is learnt.
  const auto losses = of_steps(adapted, "loss"), times = of_steps(adapted, "step_time_s");
  ASSERT_EQ(losses.size(), 48U);
  const auto whole = of_steps(go("whole", "", 48), "loss");
  ASSERT_EQ(whole.size(), 48U);
  for (std::size_t s = 0; s < 48; ++s) EXPECT_NEAR(losses[s] / whole[s], 1, 1e-4) << s;
  const auto sick = of_steps(fixed, "step_time_s");
  double best = 1e9;
  for (std::size_t s = 38; s < 48; ++s) best = std::min(best, times[s]);
  EXPECT_LT(best, sick[18] / 1.5) << "x4 on one of eight ranks";
}

TEST_F(AdaptiveRuns, ALostRankCostsNoStepWhereItsStateHasReplicas) {
  const auto run = go("lost", "step 6 kill rank 5\nstep 14 join 1\n", 26,
                      {"--adapt", "--adapt-budget", "0", "--set", "stack.can.zero_stages=[0]"});
  const auto decisions = lines_of(run / "adaptation.jsonl");
  ASSERT_GE(decisions.size(), 2U);
  EXPECT_EQ(decisions[0]["kind"], "lost");
  EXPECT_EQ(decisions[0]["evidence"][0], "node 0, GPU 5 is lost");
  const auto steps = of_steps(run, "step");
  ASSERT_EQ(steps.size(), 26U);
  for (std::size_t s = 0; s < 26; ++s) EXPECT_EQ(steps[s], static_cast<double>(s));
  const auto losses = of_steps(run, "loss"), whole = of_steps(go("sound", "", 26), "loss");
  for (std::size_t s = 0; s < 26; ++s) EXPECT_NEAR(losses[s] / whole[s], 1, 1e-4) << s;
  EXPECT_EQ(called_.out.find("going back"), std::string::npos);
}

TEST_F(AdaptiveRuns, WhatNobodyHasAnyMoreComesFromTheCheckpointOrEndsTheRun) {
  const std::vector<std::string> sharded = {"--adapt", "--adapt-budget", "0", "--set",
                                            "stack.can.zero_stages=[3]"};
  std::vector<std::string> saving = sharded;
  saving.insert(saving.end(), {"--save-every", "4"});
  const auto run = go("saved", "step 9 kill rank 5", 14, saving);
  EXPECT_NE(called_.out.find("going back to the checkpoint of step 8"), std::string::npos) << called_.out;
  const auto steps = of_steps(run, "step");
  ASSERT_EQ(steps.size(), 14U) << "each step once, those that were lost as they were made again";
  const auto losses = of_steps(run, "loss"), whole = of_steps(go("sound", "", 14), "loss");
  for (std::size_t s = 0; s < 14; ++s) EXPECT_NEAR(losses[s] / whole[s], 1, 1e-4) << s;
}

TEST_F(AdaptiveRuns, WithoutReplicasAndCheckpointsTheRunEndsAndSaysWhy) {
  std::ofstream(dir_ / "e") << "step 4 kill rank 5";
  const Called ended =
      call({"run", "--model", dir_ / "model.json", "--cluster", dir_ / "cluster.json", "--seq-len", "32",
            "--global-batch", "16", "--steps", "8", "--adapt", "--adapt-budget", "0", "--emulate", "--inject",
            dir_ / "e", "--set", "stack.can.zero_stages=[3]"});
  EXPECT_EQ(ended.code, ExitCode::run_failed);
  EXPECT_NE(ended.err.find("went with the lost ranks"), std::string::npos) << ended.err;
}

TEST_F(AdaptiveRuns, TheStartTriesLayoutsAndKeepsTheBestMeasured) {
  const auto run = go("start", "", 40, {"--adapt", "--adapt-budget", "50"});
  const auto decisions = lines_of(run / "adaptation.jsonl");
  ASSERT_FALSE(decisions.empty());
  EXPECT_EQ(decisions[0]["kind"], "start");
  const json& tried = decisions[0]["alternatives"];
  ASSERT_GE(tried.size(), 2U);
  for (const json& t : tried) EXPECT_GE(t["measured_step_time_s"], tried[0]["measured_step_time_s"]);
  EXPECT_EQ(decisions[0]["to"]["plan"], tried[0]["plan"]);
  EXPECT_LE(decisions[0]["spent_s"], decisions[0]["budget_s"]);
  EXPECT_EQ(of_steps(run, "step").size(), 40U);
}

TEST_F(AdaptiveRuns, TheSameCommandGoesOnWithTheRun) {
  const auto run = go("again", "", 3);
  go("again", "", 5, {"--resume"});
  EXPECT_EQ(of_steps(run, "step").size(), 5U);
  EXPECT_NE(called_.out.find("--model is not read"), std::string::npos) << called_.out;
}

TEST(AdaptiveOptions, ThatDoNotGoTogetherAreRefused) {
  EXPECT_EQ(call({"run", "p.json", "--inject", "e"}).code, ExitCode::usage);
  for (const std::vector<std::string>& alone :
       {std::vector<std::string>{"run", "p.json", "--adapt-budget", "3"},
        {"simulate", "p.json", "--steps", "3"},
        {"simulate", "p.json", "--save-every", "3"},
        {"simulate", "p.json", "--noise", "3"}})
    EXPECT_EQ(call(alone).code, ExitCode::usage) << alone[2] << " without what it belongs to";
  const Called mpi = call({"run", "p.json", "--adapt", "--comm", "mpi"});
  EXPECT_NE(mpi.code, ExitCode::ok);
  const Called both = call({"run", "p.json", "--model", "stories-260k", "--cluster", "laptop"});
  EXPECT_EQ(both.code, ExitCode::usage);
  EXPECT_NE(both.err.find("give one of them"), std::string::npos);
}

}  // namespace
}  // namespace sextant::testing
