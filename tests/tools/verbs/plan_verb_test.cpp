// `sextant plan` and `sextant simulate` over a small space: what is printed agrees with itself, and with the
// plan file that one writes and the other reads.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/plan/plan_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tools/verbs/plan_answers.hpp"

namespace sextant {
namespace {

// As one line: where text wraps does not matter.
std::string unwrapped(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

// One 7B model on two nodes, most fields pinned: a space that is searched at once.
std::vector<std::string> small(const std::string& verb, std::vector<std::string> more = {}) {
  std::vector<std::string> all = {
      verb, "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--global-batch", "256"};
  if (verb == "plan")
    all.insert(all.end(), {"--fix", "tp=2,cp=1,oo=0,po=off,ao=0,tpo=off", "--limit", "mbs<=2,pp<=4"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Some offer one ZeRO stage alone, which must not rule out their layouts before the stage is decided.
TEST(Plan, EveryStackHasALayout) {
  int stacks = 0;
  for (const auto& file : std::filesystem::directory_iterator(SEXTANT_SOURCE_DIR "/tools/presets/stacks")) {
    const std::string stack = file.path().stem().string();
    const auto answer =
        call_in_full({"plan", "--model", "llama-2-7b", "--cluster", "4x8xa100-80gb", "--global-batch", "256",
                      "--stack", stack, "--limit", "tp<=2,pp<=2,cp=1,mbs<=2", "--json"});
    EXPECT_EQ(answer.code, ExitCode::ok) << stack << ": " << answer.err;
    ++stacks;
  }
  EXPECT_GE(stacks, 20);
}

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
        call_in_full(small("simulate", {"--plan", "tp2.pp1.dp4.z1.mbs1", "--set", "nodes=3", "--set",
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

// What `explain` takes as an argument, `simulate` does too.
TEST(Simulate, TakesItsLayoutAsAnArgument) {
  const auto named = call_in_full(small("simulate", {"--plan", "tp2.dp8.z1.mbs1"}));
  const auto given = call_in_full(small("simulate", {"tp2.dp8.z1.mbs1"}));
  EXPECT_EQ(given.code, ExitCode::ok) << given.err;
  EXPECT_EQ(given.out, named.out);
}

// One rule: the layout of a size that --scale finds takes as long under `simulate --plan`.
TEST(Simulate, AgreesWithTheScalingCurveOfADegradedCluster) {
  const std::vector<std::string> slow = {"--set", "nodes=3", "--set",
                                         R"(defects=[{"node":1,"compute_factor":0.5}])", "--json"};
  auto curve = small("plan", slow), one = small("simulate", slow);
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

TEST(Plan, NamesATieThatIsBetterKnown) {
  const std::vector<std::string> ask = {"plan",          "--model", "llama-2-13b",      "--cluster",
                                        "8x8xa100-80gb", "--limit", "oo=0,po=off,ao=0", "--global-batch",
                                        "1024"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ask.begin(), ask.end());
    return call_in_full(more);
  };
  const auto j = nlohmann::json::parse(with({"--json"}).out);
  const std::string key = j.at("surer_tie");
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
  // The best stands alone in the table, and what is surer is told all the same.
  EXPECT_NE(unwrapped(with({"--top", "1"}).out).find("ties with #1 and is surer: "), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(with({"--top", "1", "--json"}).out).contains("surer_tie"));
}

TEST(Plan, FindsWhatTiesAndHasRoom) {
  const std::vector<std::string> ask = {"plan",     "--model",   "llama-3-8b", "--cluster",
                                        "2x8xh100", "--seq-len", "8192",       "--global-batch",
                                        "128",      "--top",     "1"};
  std::vector<std::string> json = ask;
  json.emplace_back("--json");
  const auto j = nlohmann::json::parse(call_in_full(json).out);
  const auto &best = j.at("ranked").at(0), &surer = j.at("surer");
  EXPECT_LT(surer.at("plan").at("micro_batch"), best.at("plan").at("micro_batch"));
  EXPECT_LT(surer.at("slower_share"), 0.02);
  EXPECT_TRUE(surer.at("tie").get<bool>());
  EXPECT_LT(surer.at("chance_of_overflow"), 0.05);
  EXPECT_GT(best.at("chance_of_overflow"), 0.1);
  const auto width = [](const nlohmann::json& r) {
    return r.at("step_time_s_upper").get<double>() / r.at("step_time_s").get<double>() - 1;
  };
  EXPECT_LE(1.8 * width(surer), width(best) * 1.0001);  // as surer_tie is defined
  const std::string key = surer.at("key"), fix = surer.at("fix"), text = unwrapped(call_in_full(ask).out);
  EXPECT_NE(fix.find("mbs=1"), std::string::npos) << fix;
  EXPECT_NE(text.find("ties with #1 and is surer: " + key), std::string::npos) << text;
  EXPECT_NE(text.find("--fix " + fix), std::string::npos) << text;
  // What it is told to ask for holds that layout.
  std::vector<std::string> fixed = json;
  fixed.insert(fixed.end(), {"--fix", fix});
  auto again = nlohmann::json::parse(call_in_full(fixed).out);
  EXPECT_LE(again.at("ranked").at(0).at("step_time_s"), surer.at("step_time_s"));
  EXPECT_NE(text.find("--fix " + fix + " --max-oom-chance 0.05 asks"), std::string::npos) << text;
  fixed.insert(fixed.end(), {"--max-oom-chance", surer.at("max_oom_chance").dump()});
  again = nlohmann::json::parse(call_in_full(fixed).out);
  EXPECT_LE(again.at("ranked").at(0).at("step_time_s"), surer.at("step_time_s"));
  EXPECT_LT(again.at("ranked").at(0).at("chance_of_overflow"), 0.05);
}

// What is faster is on the host, however much room it is left: the kind is told that has some.
TEST(Plan, FindsWhatTiesWithMoreOnTheHost) {
  std::vector<std::string> ask = {"plan",      "--model",   "gpt3-175b", "--cluster",
                                  "16x8xh200", "--seq-len", "2048",      "--global-batch",
                                  "256",       "--stack",   "nemo-dgxc"};
  const std::string text = unwrapped(call_in_full(ask).out);
  EXPECT_NE(text.find("less than 1 in 20 to run out of memory); #1 may run out of memory. --fix ao="),
            std::string::npos)
      << text;
  ask.emplace_back("--json");
  const auto j = nlohmann::json::parse(call_in_full(ask).out);
  const auto &best = j.at("ranked").at(0), &surer = j.at("surer");
  EXPECT_GT(best.at("chance_of_overflow"), 0.1);
  EXPECT_LT(surer.at("chance_of_overflow"), 0.05);
  EXPECT_LT(surer.at("slower_share"), 0.02);
  EXPECT_GT(surer.at("plan").at("activation_offload"), best.at("plan").at("activation_offload"));
  // What is proved is of the same steps.
  EXPECT_EQ(best.at("gained_by_refinement_share"), 0);
  EXPECT_DOUBLE_EQ(j.at("best_bound_s"), best.at("step_time_s"));
}

// On its grid values no layout holds that deadline on fewer than 64; moved, one does.
TEST(Plan, FewestGpusCountLayoutsThatAreMoved) {
  const auto ask = [](const char* gpus) {
    return nlohmann::json::parse(
        call_in_full({"plan", "--model", "llama-3-8b", "--cluster", "8x8xA100-PCIe-80GB", "--stack", "alpa",
                      "--seq-len", "1024", "--global-batch", "24", "--objective", "fewest-gpus", "--tokens",
                      "1e9", "--deadline", gpus, "--json"})
            .out);
  };
  const auto held = ask("5.65h");
  EXPECT_EQ(held.at("fewest_gpus"), 48);
  EXPECT_LE(held.at("ranked").at(0).at("step_time_s"), held.at("deadline_step_time_s"));
  EXPECT_TRUE(held.at("ranked").at(0).at("gained_by_moves_share") > 0.05);
  EXPECT_TRUE(ask("4h").at("fewest_gpus").is_null());
}

// Kinds that are not first before anything is moved may be afterwards: each is moved for as long as that helps.
TEST(Plan, NoKindOfItsTableIsMuchFasterAlone) {
  std::vector<std::string> ask = {
      "plan", "--model",        "llama-7b", "--cluster", "8x4xA100-PCIe-80GB",      "--seq-len",
      "512",  "--global-batch", "96",       "--set",     "fabric.bandwidth_GBps=5", "--json"};
  const auto step = [&] {
    return nlohmann::json::parse(call_in_full(ask).out).at("ranked").at(0).at("step_time_s").get<double>();
  };
  const double open = step();
  ask.insert(ask.end(), {"--fix", "mbs=2"});
  EXPECT_LT(open, 1.005 * step());
}

// Who is about to start a run sees in the table which layouts may run out of memory, which surely fits, and what asks for such.
TEST(Plan, TellsWhichLayoutsMayRunOutOfMemoryAndWhichIsSafe) {
  const std::vector<std::string> ask = {"plan", "--model", "llama-2-13b", "--cluster", "8x8xa100-80gb"};
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
  EXPECT_TRUE(tells(text, fmt::format("the fastest of these that surely fits (less than 1 in 20) is #{}: {}",
                                      safe - ranked.begin() + 1, safe->at("key").get<std::string>())))
      << text;
  EXPECT_TRUE(tells(with({"--top", "1"}).out, "--max-oom-chance 0.05 asks for the fastest that surely fits"));
  EXPECT_TRUE(nlohmann::json::parse(with({"--top", "1", "--json"}).out).at("fastest_safe").is_null());
  // What it names finds layouts that do, the fastest of the whole space.
  const auto asked = nlohmann::json::parse(with({"--max-oom-chance", "0.05", "--json"}).out);
  for (const auto& r : asked.at("ranked")) EXPECT_LE(r.at("chance_of_overflow"), 0.05);
  EXPECT_LE(asked.at("ranked").at(0).at("step_time_s"), safe->at("step_time_s"));
  EXPECT_GE(asked.at("ranked").at(0).at("step_time_s").get<double>(),
            ranked.at(0).at("step_time_s").get<double>() * (1 - 1e-9));
  EXPECT_TRUE(tells(asked.at("notes").dump(), "72.2 of 79.2 GiB alone"));
  // Negative controls: nothing to be said of what surely fits.
  const auto sure = with({"--max-oom-chance", "0.05"}).out;
  EXPECT_EQ(sure.find("OOM %"), std::string::npos) << sure;
  EXPECT_FALSE(tells(sure, "surely fits"));
  EXPECT_NE(with({"--max-oom-chance", "0.05", "--wide"}).out.find("OOM %"), std::string::npos);
}

TEST(Plan, SaysWhatFitsWithoutTheLimitOfTheChance) {
  const auto none = call_in_full(small("plan", {"--max-oom-chance", "1e-14"}));
  EXPECT_EQ(none.code, ExitCode::no_feasible_plan);
  const auto text = unwrapped(none.err);
  EXPECT_NE(text.find("without --max-oom-chance: tp2."), std::string::npos) << none.err;
  EXPECT_EQ(none.err.substr(none.err.rfind("next: ")).find("--max-oom-chance"), std::string::npos)
      << none.err;
  EXPECT_EQ(call_in_full(small("plan", {"--max-oom-chance", "1.5"})).code, ExitCode::usage);
}

TEST(Plan, SaysNothingOfSurerTiesWhereTheBestIsSure) {
  const auto j = nlohmann::json::parse(call_in_full(small("plan", {"--json"})).out);
  EXPECT_LT(j.at("ranked").at(0).at("chance_of_overflow"), 0.05);
  EXPECT_FALSE(j.contains("surer"));
}

// The search for the fastest ends after a minute, unless another time is asked for.
TEST(Plan, LosesPatience) {
  PlanOptions options;
  EXPECT_EQ(options.patience_s, 60);
  options.details = true;
  options.question.model = "llama-2-7b", options.question.cluster = "2x8xa100-80gb";
  const auto answer = [&] {
    std::ostringstream out, err;
    Session session{{.out = out, .err = err, .columns = 200}, {}, {}};
    const auto presets = session.presets();
    const Planning planning(read_question(options.question, presets), presets);
    const Question& q = planning.question();
    const SearchSpace space =
        default_space(q.model, q.training, q.cluster.device, q.cluster.gpus(), q.limits);
    Searching searching(session.terminal, options.budget_s);
    EXPECT_EQ(answer_fastest({session, options, planning, space, searching}), ExitCode::ok);
    return unwrapped(out.str());
  };
  EXPECT_NE(answer().find("proved in"), std::string::npos);
  options.patience_s = 1e-9;
  const std::string hurried = answer();
  EXPECT_NE(hurried.find("Not proved best: the time for the search is spent."), std::string::npos) << hurried;
  EXPECT_NE(hurried.find("--budget-s SECONDS gives the search another time than a minute."),
            std::string::npos);
  options.budget_s = 60;
  EXPECT_NE(answer().find("proved in"), std::string::npos);
}

TEST(Plan, JsonAgreesWithItself) {
  const auto outcome = call_in_full(small("plan", {"--json", "--top", "3"}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto j = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(j.at("schema"), "sextant.plan/2");
  EXPECT_EQ(j.at("gpus"), 16);
  std::uint64_t sum = 0;
  for (const auto& [name, count] : j.at("outcomes").items()) sum += count.get<std::uint64_t>();
  EXPECT_EQ(sum, j.at("space").get<std::uint64_t>());
  ASSERT_EQ(j.at("ranked").size(), 3U);
  double last = 0;
  for (const auto& r : j.at("ranked")) {
    EXPECT_GE(r.at("step_time_s").get<double>(), last);
    last = r.at("step_time_s");
    EXPECT_EQ(parse_plan_key(r.at("key").get<std::string>()), r.at("plan").get<ParallelPlan>());
    EXPECT_EQ(r.at("plan").at("tp"), 2);
    EXPECT_LE(r.at("plan").at("pp"), 4);
    EXPECT_TRUE(r.at("fits"));
    EXPECT_NEAR(r.at("tokens_per_s_per_gpu").get<double>() * r.at("step_time_s").get<double>() * 16,
                256.0 * 4096, 1);
  }
}

TEST(Plan, TheFileItWritesIsWhatSimulateReads) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const auto planned = call_in_full(small("plan", {"--json", "-o", path}));
  ASSERT_EQ(planned.code, ExitCode::ok) << planned.err;
  const auto best = nlohmann::json::parse(planned.out).at("ranked").at(0);
  const PlanFile file = load_plan_file(path);
  EXPECT_EQ(file.plan, best.at("plan").get<ParallelPlan>());
  EXPECT_EQ(file.provenance.command.at(1), "plan");

  const auto simulated = nlohmann::json::parse(call_in_full({"simulate", "--plan", path, "--json"}).out);
  EXPECT_EQ(simulated.at("schema"), "sextant.simulate/1");
  const double step = simulated.at("prediction").at("step_time_s");
  EXPECT_DOUBLE_EQ(step, best.at("step_time_s").get<double>());
  double sum = simulated.at("stragglers_and_host_s");
  for (const auto& [name, seconds] : simulated.at("breakdown_s").items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, step, 1e-9 * step);
  double peak = 0;
  for (const auto& stage : simulated.at("stages"))
    peak = std::max(peak, stage.at("memory_GiB").at("reserved").get<double>());
  EXPECT_NEAR(peak, best.at("peak_memory_GiB").get<double>(), 1e-9);
  // Another network is another prediction.
  const auto slow = nlohmann::json::parse(
      call_in_full({"simulate", "--plan", path, "--json", "--set", "fabric.bandwidth_GBps=2"}).out);
  EXPECT_GT(slow.at("prediction").at("step_time_s").get<double>(), step);
}

// What is stated of stragglers and of the network is a part of the step, which the plan file has too.
TEST(Plan, JitterIsAPartOfTheSimulatedStep) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const auto answer = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--plan", "tp2.pp2.dp4.z1.mbs1", "--json"});
    const auto outcome = call_in_full(small("simulate", more));
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
      small("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--set", "jitter.compute_sigma=0.05"}));
  EXPECT_NE(text.out.find("under the stated jitter"), std::string::npos) << text.out;
}

TEST(Plan, TablesFitTheTerminal) {
  for (const int columns : {80, 120}) {
    const auto outcome = call_in_full(small("plan"), columns);
    ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("sextant ") == std::string::npos) {
        EXPECT_LE(display_width(line), columns) << line;
      }
    }
    EXPECT_NE(outcome.out.find("next: sextant simulate --model llama-2-7b"), std::string::npos);
  }
}

nlohmann::json json_of(std::vector<std::string> more) {
  more.push_back("--json");
  const auto outcome = call_in_full(small("plan", std::move(more)));
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}
double number(const nlohmann::json& j, const char* key) { return j.at(key).get<double>(); }

// FSDP1 keeps state on the host where a step is one micro-batch; the number of ranks decides that, not what is asked for.
TEST(Plan, StateIsOnTheHostWhereOneMicrobatchIsLeft) {
  const auto ask = [](const char* batch, const char* fix) {
    return call_in_full({"plan", "--model", "llama-2-7b", "--cluster", "1x8xh100", "--stack", "fsdp1-eager",
                         "--seq-len", "4096", "--global-batch", batch, "--fix", fix, "--top", "1"});
  };
  for (const auto& [batch, fix] : {std::pair{"8", "po=on,oo=100"}, {"64", "po=on,oo=100,mbs=8"}}) {
    const auto found = ask(batch, fix);
    EXPECT_EQ(found.code, ExitCode::ok) << found.err;
    EXPECT_NE(found.out.find(".dp8.z3."), std::string::npos) << found.out;
  }
  const auto refused = ask("64", "po=on,oo=100,mbs=1");
  EXPECT_EQ(refused.code, ExitCode::no_feasible_plan);
  EXPECT_NE((refused.out + refused.err).find("fewest GPUs: 64"), std::string::npos)
      << refused.out << refused.err;
}

TEST(Plan, PinsEveryField) {
  const auto outcome = call_in_full(
      {"plan", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--stack", "sextant", "--json", "--fix",
       "tp=2,pp=2,ao=3,hz=2,b=40M,rec=full7,ax=tp-dp-cp-pp,split=even,oo=30,z=1"});
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  for (const auto& r : nlohmann::json::parse(outcome.out).at("ranked")) {
    const auto plan = r.at("plan").get<ParallelPlan>();
    EXPECT_EQ(plan.bucket_elements, 40'000'000);
    EXPECT_EQ(plan.activation_offload, 3);
    EXPECT_EQ(plan.offload_horizon, 2);
    EXPECT_EQ(plan.recompute, (Recompute{RecomputeKind::full, 7}));
    EXPECT_EQ(plan.axis_order[1], Axis::dp);
    EXPECT_DOUBLE_EQ(plan.optimizer_offload, 0.3);
    EXPECT_TRUE(plan.chunks.empty());
  }
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
  const auto none = call_in_full(small("plan", never));
  EXPECT_EQ(none.code, ExitCode::no_feasible_plan);
  EXPECT_NE(none.err.find("do not hold the deadline"), std::string::npos) << none.err;
  never.push_back("--json");
  EXPECT_EQ(call_in_full(small("plan", never)).code, ExitCode::no_feasible_plan);
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

// What is said of the least holds for the table above it, and for smaller layouts than the fast search looks at.
TEST(Plan, NothingIsLeanerThanTheLeanest) {
  const std::vector<std::string> question = {"--model",        "llama-2-13b", "--cluster", "8x8xa100-80gb",
                                             "--global-batch", "1024",        "--seq-len", "4096"};
  auto ask = question;
  ask.insert(ask.begin(), "plan"), ask.insert(ask.end(), {"--objective", "least-memory", "--json"});
  const auto lean = nlohmann::json::parse(call_in_full(ask).out);
  EXPECT_TRUE(lean.at("exact"));
  for (const auto& r : lean.at("ranked"))
    EXPECT_EQ(number(r, "peak_memory_GiB"), number(lean, "least_memory_GiB"));
  for (const char* other :
       {"tp8.pp1.vp1.cp8.dp1.z1.mbs1.full.oo100.nopg.tpo", "tp8.pp8.vp3.dp1.mbs1.oo100"}) {
    auto simulate = question;
    simulate.insert(simulate.begin(), "simulate"),
        simulate.insert(simulate.end(), {"--plan", other, "--json"});
    const auto j = nlohmann::json::parse(call_in_full(simulate).out);
    EXPECT_GE(number(j.at("prediction"), "peak_memory_GiB"), number(lean, "least_memory_GiB")) << other;
  }
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
  EXPECT_EQ(call_in_full(small("plan", {"--rank-by", "p90"})).code, ExitCode::usage) << "no jitter is stated";
  EXPECT_EQ(json_of({"--straggler-sigma", "0.03", "--rank-by", "p90"}).at("notes").size(), 0u);
  const auto unread = json_of({"--straggler-sigma", "0.03"}).at("notes");
  ASSERT_EQ(unread.size(), 1u);
  EXPECT_NE(unread[0].get<std::string>().find("--rank-by"), std::string::npos) << unread;
  const auto table =
      call_in_full(small("plan", {"--rank-by", "p90", "--straggler-sigma", "0.02", "--fix", "pp=1"}), 80);
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
                                    "8x8xa100-80gb",
                                    "--global-batch",
                                    "256",
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
    ASSERT_EQ(call_in_full(small("plan", {"--rank-by", by, "--straggler-sigma", "0.03", "--network-sigma",
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
    const std::string text = unwrapped(call_in_full(small("plan", asked)).out);
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

TEST(Plan, TheFileSaysWhereItsStepGoes) {
  const TempDir dir;
  const std::string path = (dir.path() / "plan.json").string();
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"--objective", "least-memory"},
           {"--objective", "tokens-per-dollar", "--price-per-gpu-hour", "2"}}) {
    auto asked = more;
    asked.insert(asked.end(), {"-o", path});
    ASSERT_EQ(call_in_full(small("plan", asked)).code, ExitCode::ok);
    const PlanPrediction p = load_plan_file(path).prediction;
    double sum = 0;
    for (const auto& [part, seconds] : p.breakdown_s) sum += seconds;
    EXPECT_NEAR(sum, p.step_time_s.value, 1e-12 * sum);
    EXPECT_GT(p.breakdown_s.at("compute"), 0.3 * sum);
    EXPECT_LT(std::abs(p.breakdown_s.at("stragglers_and_host")), 0.2 * sum);
    const auto simulated = nlohmann::json::parse(call_in_full({"simulate", "--plan", path, "--json"}).out);
    for (const auto& [part, seconds] : simulated.at("breakdown_s").items())
      EXPECT_NEAR(p.breakdown_s.at(part), seconds.get<double>(), 1e-12 * sum) << part;
  }
}

TEST(Plan, EveryAnswerFitsTheTerminal) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--scale", "8,16"},
           {"--pareto"},
           {"--objective", "least-memory"},
           {"--objective", "tokens-per-dollar", "--price-per-gpu-hour", "2"},
           {"--objective", "fewest-gpus"}})
    for (const int columns : {80, 120}) {
      const auto outcome = call_in_full(small("plan", more), columns);
      ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
      EXPECT_NE(outcome.out.find("next: sextant simulate --model llama-2-7b"), std::string::npos)
          << outcome.out;
      std::istringstream lines(outcome.out);
      for (std::string line; std::getline(lines, line);)
        if (line.find("sextant ") == std::string::npos) {
          EXPECT_LE(display_width(line), columns) << line;
        }
    }
}

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
    EXPECT_EQ(call_in_full(small("plan", more)).code, ExitCode::usage)
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
  EXPECT_EQ(call_in_full(small("plan", {"--top", "0"})).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small("plan", {"--fix", "tpp=4"})).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small("plan", {"--top"})).code, ExitCode::usage);
  EXPECT_NE(call_in_full(small("plan", {"-o", "/nonexistent/plan.json"})).code, ExitCode::ok);
}

TEST(Simulate, WritesATraceAndSaysWhatDoesNotFit) {
  const TempDir folder;
  const std::string trace = (folder.path() / "t.json").string();
  const auto good = call_in_full(small("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--trace", trace}));
  EXPECT_EQ(good.code, ExitCode::ok) << good.err;
  double end = 0;
  const auto written = nlohmann::json::parse(read_text_file(trace));
  for (const auto& event : written.at("traceEvents"))
    if (event.at("ph") == "X")
      end = std::max(end, event.at("ts").get<double>() + event.at("dur").get<double>());
  const auto same = call_in_full(small("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--json"}));
  const double step = nlohmann::json::parse(same.out).at("prediction").at("step_time_s");
  EXPECT_NEAR(end * 1e-6, step, 1e-8) << "a trace is as long as the step that is printed";
  EXPECT_NE(good.out.find("the trace is as long as the step: its operations end at "), std::string::npos)
      << good.out;
  const auto large = call_in_full(small("simulate", {"--plan", "tp1.dp16.z0.mbs16"}));
  EXPECT_EQ(large.code, ExitCode::no_feasible_plan);
  EXPECT_NE(large.out.find("does not fit: needs "), std::string::npos) << large.out;
  // In words, not as the key of a JSON field.
  const auto state = call_in_full(small("simulate", {"--plan", "tp1.dp16.z0.mbs1"}));
  EXPECT_NE(state.out.find("(most of it optimizer state of stage 0)"), std::string::npos) << state.out;
  EXPECT_EQ(call_in_full(small("simulate", {"--plan", "tp8.pp8.dp8"})).code, ExitCode::no_feasible_plan);
  EXPECT_EQ(call_in_full(small("simulate", {"--plan", "tp3.dp4"})).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small("simulate")).code, ExitCode::usage);
}

// The best of a nearly full device says how likely it runs out; one with room says nothing of it.
TEST(Plan, AChanceOfRunningOutIsPrinted) {
  const std::vector<std::string> full = {"--model", "llama-2-13b", "--cluster", "8x8xa100-80gb"};
  const auto said = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), full.begin(), full.end());
    return call_in_full(arguments).out.find("chance of running out of memory: ") != std::string::npos;
  };
  EXPECT_TRUE(said({"simulate", "--plan", "tp1.pp1.dp64.z2.mbs2.b400M"}));
  EXPECT_FALSE(said({"simulate", "--plan", "tp1.pp1.dp64.z2.mbs1.b400M"}));
  EXPECT_TRUE(said({"plan"}));
  EXPECT_FALSE(said({"plan", "--fix", "mbs=1,oo=0,ao=0"}));
}

// Of the two nodes, each under a leaf of its own.
TEST(Simulate, ADegradedNicOrUplinkSlowsOnlyWhatCrossesIt) {
  const auto step = [](const std::string& plan, std::vector<std::string> settings) {
    std::vector<std::string> arguments =
        small("simulate", {"--plan", plan, "--json", "--set", "fabric.leaf_nodes=1"});
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

// Storage alone gives size and time of a checkpoint; how often one pays needs failures too.
TEST(Plan, StorageAloneGivesThePriceOfACheckpoint) {
  const std::vector<std::string> question = {"simulate",  "--model",       "llama-2-13b",
                                             "--cluster", "8x8xa100-80gb", "--global-batch",
                                             "1024",      "--plan",        "tp2.mbs1"};
  const auto with = [&](std::initializer_list<const char*> more) {
    std::vector<std::string> words = question;
    words.insert(words.end(), more.begin(), more.end());
    return call_in_full(words);
  };
  EXPECT_EQ(with({}).out.find("checkpoints:"), std::string::npos);
  const auto stored = with({"--storage-GBps", "20"});
  EXPECT_NE(stored.out.find("checkpoints: 182.22 GB in 9"), std::string::npos) << stored.out;
  EXPECT_NE(stored.out.find("--node-mtbf-hours"), std::string::npos) << stored.out;
  const auto j = nlohmann::json::parse(with({"--storage-GBps", "20", "--json"}).out);
  EXPECT_NEAR(j["prediction"]["checkpoint_save_s"].get<double>(), 182.22 / 20, 0.3);
  EXPECT_TRUE(j["prediction"]["goodput"].is_null());
  EXPECT_NE(with({"--node-mtbf-hours", "50000"}).out.find("--storage-GBps"), std::string::npos);
}

TEST(Plan, SaysWhenNothingLikeItWasMeasured) {
  const std::vector<std::string> question = {"simulate", "--model",   "llama-2-13b", "--plan",
                                             "tp2.mbs1", "--seq-len", "4096",        "--json"};
  const auto on = [&](const std::string& cluster) {
    std::vector<std::string> words = question;
    words.insert(words.end(), {"--cluster", cluster, "--global-batch", "16384"});
    return nlohmann::json::parse(call_in_full(words).out);
  };
  const auto spread = [](const nlohmann::json& j) {
    const auto& p = j.contains("prediction") ? j["prediction"] : j;
    return p["step_time_s_upper"].get<double>() / p["step_time_s"].get<double>() - 1;
  };
  const auto near = on("8x8xh100"), far = on("1024x8xh100");
  EXPECT_EQ(near["notes"].dump().find("far from any measured run"), std::string::npos) << near["notes"];
  EXPECT_NE(far["notes"].dump().find("8192 GPUs, at most"), std::string::npos) << far["notes"];
  EXPECT_GT(spread(far), 1.7 * spread(near));
}

}  // namespace
}  // namespace sextant
