// `sextant explain` over a small space: every verdict with its numbers, and what is printed agrees with itself.
#include <cmath>
#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/plan/parallel_plan.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {
namespace {

using Json = nlohmann::json;

// Few members, so that every search ends at once.
std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> all = {"explain",
                                  "--model",
                                  "llama-2-7b",
                                  "--cluster",
                                  "2x8xa100-80gb",
                                  "--global-batch",
                                  "256",
                                  "--fix",
                                  "cp=1,oo=0,po=off,ao=0,tpo=off,b=0,lb=1,ax=tp-cp-dp-pp",
                                  "--limit",
                                  "mbs<=4,pp<=4,tp<=4"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Json explanation(std::vector<std::string> more) {
  more.push_back("--json");
  const auto outcome = call(small(more));
  EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  return Json::parse(outcome.out);
}

TEST(Explain, VerdictsHaveNumbersThatSum) {
  const Json j = explanation({"--daring", "--why", "tp4.pp4.z1.mbs1.full", "--why", "tp1.z0.mbs16", "--why",
                              "tp3.pp2", "--why", "tp16.pp4.dp2"});
  EXPECT_EQ(j.at("schema"), "sextant.explain/3");
  std::uint64_t sum = 0;
  for (const auto& [name, count] : j.at("outcomes").items()) sum += count.get<std::uint64_t>();
  EXPECT_EQ(sum, j.at("space").get<std::uint64_t>());
  EXPECT_EQ(j.at("against_best").at("verdict"), "best");
  ASSERT_EQ(j.at("why_not").size(), 4U);

  const Json& slow = j.at("why_not").at(0);
  EXPECT_EQ(slow.at("verdict"), "slower");
  EXPECT_EQ(parse_plan_key(slow.at("key").get<std::string>()).dp, 1) << "16 GPUs are 4 x 4 x 1";
  const Json& c = slow.at("comparison");
  EXPECT_GT(c.at("slower_share").get<double>(), 0.02);
  EXPECT_FALSE(c.at("tie"));
  double difference = 0;
  for (const Json& t : c.at("terms"))
    difference += t.at("other_s").get<double>() - t.at("chosen_s").get<double>();
  const double steps = c.at("other_step_time_s").get<double>() - c.at("chosen_step_time_s").get<double>();
  EXPECT_GT(difference, 0);
  EXPECT_NE(difference, steps);  // stragglers stretch the steps a little
  const double beyond =
      c.at("other_stragglers_and_host_s").get<double>() - c.at("chosen_stragglers_and_host_s").get<double>();
  EXPECT_NEAR(difference + beyond, steps, 1e-9 * steps);
  // One is simulated op by op, the other folded.
  const double chosen = j.at("chosen").at("step_time_s");
  EXPECT_NEAR(c.at("chosen_step_time_s"), chosen, 1e-12 * chosen);

  const Json& large = j.at("why_not").at(1);
  EXPECT_EQ(large.at("verdict"), "too_large");
  EXPECT_EQ(parse_plan_key(large.at("key").get<std::string>()).dp, 16);
  double memory = 0;
  for (const Json& t : large.at("memory")) memory += t.at("other_GiB").get<double>();
  EXPECT_NEAR(memory - j.at("chosen").at("available_memory_GiB").get<double>(),
              large.at("short_by_GiB").get<double>(), 0.01);
  ASSERT_FALSE(large.at("smallest_change").is_null());
  EXPECT_TRUE(large.at("smallest_change").at("fits"));
  EXPECT_NE(large.at("smallest_change").at("key"), large.at("key"));

  EXPECT_EQ(j.at("why_not").at(2).at("verdict"), "unlawful");
  EXPECT_NE(j.at("why_not").at(2).at("reason").get<std::string>().find("n_heads"), std::string::npos);
  EXPECT_TRUE(j.at("why_not").at(2).at("smallest_change").at("fits"));
  EXPECT_NE(j.at("why_not").at(3).at("reason").get<std::string>().find("needs 128 GPUs, the cluster has 16"),
            std::string::npos);
}

TEST(Explain, AKeyThatCannotFillTheClusterIsNoLayout) {
  const Json j = explanation({"--why", "pp3.z1.mbs1", "--why", "tp2.dp2.z1.mbs1", "--quick"});
  const Json& odd = j.at("why_not").at(0);
  EXPECT_EQ(odd.at("verdict"), "unlawful");
  EXPECT_NE(odd.at("reason").get<std::string>().find(
                "tp * cp * pp = 3, expected a divisor of the cluster's 16 GPUs"),
            std::string::npos)
      << odd;
  EXPECT_EQ(j.at("why_not").at(1).at("notes").at(0), "4 of the cluster's 16 GPUs are used; 12 are idle");
}

// At 0.1 s a step the fixed time of a step counts: every verb divides by the step that a user measures.
TEST(Explain, SharesAreThoseOfPlanAndSimulate) {
  const auto ask = [](const std::string& verb, std::vector<std::string> more) {
    more.insert(more.begin(), {verb, "--model", "llama-3.2-1b", "--cluster", "1x8xh100", "--global-batch",
                               "16", "--seq-len", "2048"});
    const auto outcome = call(more, 120);
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return outcome.out;
  };
  const std::vector<std::string> pinned = {"--limit", "tp<=2,pp<=2,cp=1,mbs<=2,oo=0,po=off,ao=0"};
  auto more = pinned;
  more.insert(more.end(), {"--json", "--top", "8"});
  const Json ranked = Json::parse(ask("plan", more)).at("ranked");
  ASSERT_EQ(ranked.size(), 8U);
  const double step = ranked[0].at("step_time_s");
  ASSERT_LT(step, 0.2);
  more = pinned;
  more.insert(more.end(), {"--quick", "--json", "--plan", ranked[0].at("key").get<std::string>()});
  for (std::size_t i = 1; i < ranked.size(); ++i)
    more.insert(more.end(), {"--why", ranked[i].at("key").get<std::string>()});
  const Json explained = Json::parse(ask("explain", more));
  for (std::size_t i = 1; i < ranked.size(); ++i) {
    const Json& r = ranked[i];
    EXPECT_NEAR(r.at("slower_share").get<double>(), r.at("step_time_s").get<double>() / step - 1, 1e-9);
    const Json& c = explained.at("why_not").at(i - 1).at("comparison");
    EXPECT_NEAR(r.at("slower_share").get<double>(), c.at("slower_share").get<double>(), 1e-9);
    EXPECT_EQ(r.at("tie"), c.at("tie"));
  }
  // Of the step go as many percent to compute in both texts.
  const std::string plan = ranked[0].at("key");
  more = pinned;
  more.insert(more.end(), {"--quick", "--plan", plan});
  const std::string why = ask("explain", more);
  std::istringstream said(why.substr(why.find("its time: compute ")));
  std::istringstream table(ask("simulate", {"--plan", plan}));
  std::string word, row;
  double explains = 0, seconds = 0, simulates = -1;
  said >> word >> word >> word >> explains;
  while (std::getline(table, row) && !row.starts_with("compute ")) {
  }
  std::istringstream(row) >> word >> seconds >> simulates;
  EXPECT_EQ(explains, simulates) << why << row;
  EXPECT_NE(why.find("stragglers and host"), std::string::npos) << why;
}

// What `plan --rank-by` answers and what `explain` says of it, from its file or asked anew, rank alike.
TEST(Explain, RanksAsThePlanDid) {
  const TempDir dir;
  const std::string path = (dir.path() / "plan.json").string();
  const std::vector<std::string> space = {"--fix", "cp=1,oo=0,po=off,ao=0,tpo=off,b=0,lb=1,ax=tp-cp-dp-pp",
                                          "--limit", "mbs<=4,pp<=4,tp<=4"};
  for (const std::string by : {"expected", "p90"}) {
    auto asked = small({"--straggler-sigma", "0.02", "--network-sigma", "0.5", "--rank-by", by, "--json"});
    asked.front() = "plan";
    asked.insert(asked.end(), {"-o", path});
    const Json plan = Json::parse(call(asked).out);
    auto of_file = space;
    of_file.insert(of_file.begin(), {"explain", path, "--json"});
    const Json explained = Json::parse(call(of_file).out);
    EXPECT_EQ(explained.at("rank_by"), by);
    EXPECT_EQ(explained.at("against_best").at("verdict"), "best");
    for (const char* key :
         {"key", "step_time_s", "step_time_s_upper", "p90_step_time_s", "undisturbed_step_time_s"})
      EXPECT_EQ(explained.at("chosen").at(key), plan.at("ranked").at(0).at(key)) << key;
    const Json& next = explained.at("runners_up");
    ASSERT_EQ(next.size(), plan.at("ranked").size() - 1);
    double last = 0;
    for (std::size_t i = 0; i < next.size(); ++i) {
      const Json &r = plan.at("ranked").at(i + 1), &c = next.at(i).at("comparison");
      EXPECT_EQ(next.at(i).at("key"), r.at("key"));
      EXPECT_NEAR(c.at("slower_share").get<double>(), r.at("slower_share").get<double>(), 1e-9);
      EXPECT_GE(c.at("slower_share").get<double>(), last);
      last = c.at("slower_share");
      EXPECT_GT(c.at("other_jitter_s").get<double>(), 0);
    }
    // No other field's value, and no other layout on a machine a little different, is better than this by what ranks.
    for (const Json& a : explained.at("alternatives"))
      if (!a.at("key").is_null()) {
        EXPECT_GE(a.at("comparison").at("slower_share").get<double>(), -1e-9) << a;
      }
    for (const Json& s : explained.at("sensitivities")) EXPECT_GE(s.at("regret_share").get<double>(), 0) << s;
    const Json anew =
        explanation({"--straggler-sigma", "0.02", "--network-sigma", "0.5", "--rank-by", by, "--quick"});
    EXPECT_EQ(anew.at("chosen").at("step_time_s"), explained.at("chosen").at("step_time_s"));
    EXPECT_EQ(anew.at("runners_up"), next);
  }
  const Json unread = explanation({"--straggler-sigma", "0.02", "--quick"});
  EXPECT_FALSE(unread.contains("rank_by"));
  ASSERT_EQ(unread.at("notes").size(), 1U);
  EXPECT_NE(unread.at("notes").at(0).get<std::string>().find("--rank-by"), std::string::npos);
  EXPECT_EQ(call(small({"--rank-by", "p90", "--quick"})).code, ExitCode::usage) << "no jitter is stated";
  const auto text = call(small({"--straggler-sigma", "0.02", "--rank-by", "p90", "--quick"})).out;
  EXPECT_NE(text.find("the best by p90 of"), std::string::npos) << text;
  EXPECT_NE(text.find("s undisturbed"), std::string::npos) << text;
}

// Without a layout: what `plan` recommends, compared with its alternatives and with layouts of its kind.
TEST(Explain, ExplainsWhatPlanRecommends) {
  const Words question = {"--model", "llama-2-13b", "--cluster",      "2x8xa100-80gb",
                          "--limit", "tp<=8",       "--global-batch", "128"};
  const auto ask = [&](Words verb, Words more) { return call(verb + question + more, kUnlimitedColumns); };
  const Json plan = Json::parse(ask({"plan"}, {"--json"}).out);
  const Json j = Json::parse(ask({"explain"}, {"--json"}).out);
  EXPECT_EQ(j.at("chosen").at("key"), plan.at("recommended").at("key"));
  EXPECT_EQ(j.at("recommended").at("why"), plan.at("recommended").at("why"));
  EXPECT_TRUE(j.at("recommended").at("comparison").is_null());
  ASSERT_EQ(j.at("runners_up").size(), plan.at("alternatives").size());
  for (std::size_t i = 0; i < j.at("runners_up").size(); ++i) {
    const Json &other = plan.at("alternatives").at(i), &told = j.at("runners_up").at(i);
    for (const char* key : {"key", "kind", "chance_of_overflow"}) EXPECT_EQ(told.at(key), other.at(key));
  }
  EXPECT_TRUE(j.at("only_usual_layouts"));
  for (const Json& a : j.at("alternatives")) {
    const ParallelPlan p = parse_plan_key(a.at("key").get<std::string>());
    EXPECT_TRUE(p.optimizer_offload == 0 && p.activation_offload == 0 && !p.parameter_offload) << a;
  }
  const std::string text = ask({"explain"}, {"--quick"}).out;
  EXPECT_NE(text.find("it is what 'sextant plan' recommends: "), std::string::npos) << text;
  EXPECT_NE(text.find("fastest on paper: "), std::string::npos) << text;
  // Negative control: the fastest on paper is another layout, and is compared with all.
  const Json daring = Json::parse(ask({"explain"}, {"--json", "--daring", "--quick"}).out);
  EXPECT_EQ(daring.at("chosen").at("key"), plan.at("ranked").at(0).at("key"));
  EXPECT_NE(daring.at("chosen").at("key"), j.at("chosen").at("key"));
  EXPECT_EQ(daring.at("recommended").at("key"), j.at("chosen").at("key"));
  EXPECT_FALSE(daring.at("only_usual_layouts"));
}

TEST(Explain, NamesTheAlternativesOfPlanWhereItIsTheFastestOnPaper) {
  const auto ask = [](const char* verb, Words more) {
    return Json::parse(call(Words{verb, "--model", "llama-2-13b", "--cluster", "8x8xa100-80gb",
                                  "--global-batch", "1024", "--json"} +
                            more)
                           .out);
  };
  const Json plan = ask("plan", {}), j = ask("explain", {"--quick"});
  ASSERT_TRUE(plan.at("recommended").at("fastest_on_paper"));
  ASSERT_GE(plan.at("alternatives").size(), 3U);
  ASSERT_EQ(j.at("runners_up").size(), plan.at("alternatives").size());
  for (std::size_t i = 0; i < j.at("runners_up").size(); ++i)
    for (const char* key : {"key", "kind"})
      EXPECT_EQ(j.at("runners_up").at(i).at(key), plan.at("alternatives").at(i).at(key));
  // Of the fastest on paper, asked for as that, the ranking.
  for (const Json& next : ask("explain", {"--quick", "--daring"}).at("runners_up"))
    EXPECT_EQ(next.at("kind"), "");
}

TEST(Explain, AlternativesAndMachinesAreOther) {
  const Json j = explanation({"--daring"});  // what is recommended may be slower than others by what a tie is
  const auto chosen = parse_plan_key(j.at("chosen").at("key").get<std::string>());
  ASSERT_FALSE(j.at("alternatives").empty());
  for (const Json& a : j.at("alternatives")) {
    if (a.at("key").is_null()) continue;
    const auto other = parse_plan_key(a.at("key").get<std::string>());
    EXPECT_NE(a.at("field"), "cp") << "pinned";
    if (a.at("field") == "tp") {
      EXPECT_NE(other.tp, chosen.tp);
    }
    if (a.at("field") == "pp") {
      EXPECT_NE(other.pp, chosen.pp);
    }
    EXPECT_GE(a.at("comparison").at("slower_share").get<double>(), -1e-9);
  }
  ASSERT_GE(j.at("sensitivities").size(), 4U);
  for (const Json& s : j.at("sensitivities")) {
    EXPECT_TRUE(s.at("exact"));
    EXPECT_GE(s.at("regret_share").get<double>(), -1e-9) << s;
    if (s.at("what") == "GEMMs -10 %") {
      EXPECT_GT(s.at("slower_share").get<double>(), 0.05);
    }
  }
  // A poor choice is told from the best one.
  const Json poor = explanation({"tp4.pp4.dp1.z1.mbs1.full", "--quick"});
  EXPECT_EQ(poor.at("against_best").at("verdict"), "slower");
  EXPECT_EQ(poor.at("chosen").at("key"), "tp4.pp4.vp1.cp1.dp1.z1.mbs1.full");
  EXPECT_TRUE(poor.at("alternatives").empty());
}

TEST(Explain, WritesItsLayoutAndComparesAsManyAsAsked) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const std::vector<std::string> question = {"explain",         "--model",       "llama-2-7b",
                                             "--cluster",       "1x8xa100-80gb", "--limit",
                                             "tp<=2,pp=1,cp=1", "--quick",       "--daring"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), question.begin(), question.end());
    return call(more);
  };
  const auto two = nlohmann::json::parse(with({"--top", "2", "--json"}).out),
             four = nlohmann::json::parse(with({"--top", "4", "--json", "-o", path}).out);
  EXPECT_EQ(two.at("runners_up").size(), 1u);
  EXPECT_EQ(four.at("runners_up").size(), 3u);
  const auto again = call({"simulate", "--plan", path, "--json"});
  ASSERT_EQ(again.code, ExitCode::ok) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out).at("prediction").at("key"), four.at("chosen").at("key"));
  EXPECT_NE(with({"-o", path}).out.find("next: sextant simulate --plan " + path), std::string::npos);
  // A layout that cannot run is no plan.
  const std::string none = (folder.path() / "none.json").string();
  EXPECT_EQ(with({"--plan", "tp1.dp8.z0.mbs1", "-o", none}).code, ExitCode::no_feasible_plan);
  EXPECT_FALSE(std::filesystem::exists(none));
  EXPECT_EQ(with({"-o", (folder.path() / "no/plan.json").string()}).code, ExitCode::bad_input);
}

TEST(Explain, SaysWhatTheFrameworkMustBeTold) {
  const auto told = [](const char* verb, const char* batch) {
    const auto outcome = call({verb, "--model", "llama-2-7b", "--cluster", "1x8xa100-80gb", "--plan",
                               "pp4.vp2.dp2.z1.mbs1", "--global-batch", batch});
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return outcome.out.find("microbatch_group_size_per_vp_stage=6") != std::string::npos;
  };
  EXPECT_TRUE(told("simulate", "12"));
  EXPECT_TRUE(told("explain", "12"));
  EXPECT_FALSE(told("simulate", "16"));
  // torchtitan makes such groups by itself, and has no option of Megatron-Core's.
  const auto titan = call({"simulate", "--model", "llama-2-7b", "--cluster", "1x8xa100-80gb", "--plan",
                           "pp4.vp2.dp2.z2.mbs1", "--global-batch", "12", "--stack", "torchtitan"});
  EXPECT_EQ(titan.code, ExitCode::ok) << titan.err;
  EXPECT_EQ(titan.out.find("virtual stage"), std::string::npos) << titan.out;
}

TEST(Explain, ReadsAPlanFileAndFitsTheTerminal) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  ASSERT_EQ(call({"simulate", "--model", "llama-2-7b", "--cluster", "2x8xa100-80gb", "--global-batch", "256",
                  "--plan", "tp2.dp8.z1.mbs2", "-o", path})
                .code,
            ExitCode::ok);
  for (const int columns : {80, 120}) {
    const auto outcome = call({"explain", path, "--fix", "cp=1,oo=0,po=off,ao=0,tpo=off,b=0,lb=1", "--limit",
                               "mbs<=4,pp<=4,tp<=4", "--why", "tp1.z0.mbs16", "--why", "tp4.z1"},
                              columns);
    ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    EXPECT_NE(outcome.out.find("why tp2.pp1.vp1.cp1.dp8.z1.mbs2"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("why not tp1.pp1.vp1.cp1.dp16.z0.mbs16"), std::string::npos);
    EXPECT_NE(outcome.out.find("smallest change: "), std::string::npos);
    EXPECT_NE(outcome.out.find("next: sextant simulate --plan " + path), std::string::npos);
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);)
      if (line.find("next: ") == std::string::npos) {
        EXPECT_LE(display_width(line), columns) << line;
      }
  }
}

TEST(Explain, BadQuestionsAndImpossibleLayouts) {
  const auto slip = call(small({"--why", "tq4"}));
  EXPECT_EQ(slip.code, ExitCode::usage);
  EXPECT_NE(slip.err.find("--why"), std::string::npos) << slip.err;
  EXPECT_EQ(call(small({"dp16", "--plan", "dp16"})).code, ExitCode::usage);
  EXPECT_EQ(call({"explain", "dp16"}).code, ExitCode::usage);
  EXPECT_EQ(call({"explain", "no-such-plan.json"}).code, ExitCode::bad_input);
  const auto large = call(small({"tp1.dp16.z0.mbs16"}));
  EXPECT_EQ(large.code, ExitCode::no_feasible_plan);
  EXPECT_NE(large.out.find("GiB too much"), std::string::npos) << large.out;
  EXPECT_NE(large.out.find("next: sextant plan --model"), std::string::npos) << large.out;
  // Nothing at all fits: with and without --json.
  for (const bool json : {false, true}) {
    std::vector<std::string> none = {"explain",       "--model", "llama-2-70b",     "--cluster",
                                     "1x1xa100-40gb", "--fix",   "oo=0,po=off,ao=0"};
    if (json) none.push_back("--json");
    EXPECT_EQ(call(none).code, ExitCode::no_feasible_plan);
  }
}

}  // namespace
}  // namespace sextant
