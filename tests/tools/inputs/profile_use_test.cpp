// --profile of the verbs that predict, with tables of stated times: what is told of the machine here, of another, and of none.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "core/plan/plan_file.hpp"
#include "core/timeline/work_profile.hpp"
#include "tests/tools/inputs/profiles.hpp"

namespace sextant {
namespace {

using namespace bad_input;

TEST_F(Profiles, SimulateAndRunPredictTheSame) {
  write("p.json", json(table("tiny.json", 2)));
  const json plain = answer({"simulate", "--plan", "tiny.json"}),
             with = answer({"simulate", "--plan", "tiny.json", "--profile", "p.json"}),
             run = answer({"run", "tiny.json", "--steps", "1", "--profile", "p.json"});
  EXPECT_FALSE(plain.contains("profile") || plain.at("prediction").contains("predicted_from")) << "as before";
  const json& shares = with.at("prediction").at("predicted_from");
  EXPECT_EQ(shares.at("measured_share"), 1);
  sums_to_one(shares);
  EXPECT_EQ(with.at("profile").at("file"), "p.json");
  EXPECT_GT(simulated(with),
            1.9 * simulated(plain));  // what is slowed by exchanges is so in the plain one alone
  EXPECT_NEAR(run.at("steps").at(0).at("predicted_step_time_s").get<double>() / simulated(with), 1, 1e-9);
  EXPECT_EQ(run.at("predicted_from"), shares);
}

TEST_F(Profiles, WhatIsBetweenIsInterpolatedAndTheRestModelled) {
  for (const char* key : {"dp2.z1.mbs1", "dp2.z1.mbs4"}) make(std::string(key) + ".json", key);
  WorkProfile both = table("dp2.z1.mbs1.json", 1.5);
  both.works.merge(table("dp2.z1.mbs4.json", 1.5).works);
  std::erase_if(both.works, [](const auto& w) { return w.first.starts_with("attention backward"); });
  write("p.json", json(both));
  const json j = answer({"simulate", "--plan", "tiny.json", "--profile", "p.json"});
  const json& shares = j.at("prediction").at("predicted_from");
  sums_to_one(shares);
  for (const char* part : {"interpolated_share", "analytic_share"})
    EXPECT_GT(shares.at(part).get<double>(), 0.05) << part;
  const Called text = call_in_full({"simulate", "--plan", "tiny.json", "--profile", "p.json"}, 80);
  EXPECT_NE(text.out.find("predicted from p.json (AMD EPYC 7742, 2026-11-24):"), std::string::npos)
      << text.out;
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });
    EXPECT_LE(columns, 80) << line;
  }
}

// Each of the machine's own measurements acts on a prediction; none counts as a measured work.
TEST_F(Profiles, TheMachineByItselfPredictsWhatNoWorkDoes) {
  WorkProfile bare;
  bare.machine = "AMD EPYC 7742, 2 threads";
  bare.facts.emplace();
  const auto add = [&](const char* what, double us, const char* concurrent_with = "") {
    MachineMeasurement& m = bare.facts->measurements.emplace_back();
    m.what = what;
    m.concurrent_with = concurrent_with;
    m.median_us = us;
  };
  add("gemm bf16 1024x1024x1024", 9600);
  add("copy device_to_device 67108864B", 6200);
  add("launch", 0.5);
  for (const char* exchange : {"all_reduce 65536B g2", "all_gather 65536B g2", "reduce_scatter 65536B g2"})
    add(exchange, 60);
  for (const char* exchange :
       {"all_reduce 1048576B g2", "all_gather 1048576B g2", "reduce_scatter 1048576B g2"})
    add(exchange, 250);
  add("gemm bf16 1024x1024x1024 on 2 ranks", 9600);
  add("gemm bf16 1024x1024x1024 on 2 ranks", 12000, "all_reduce 1048576B g2");
  add("all_reduce 1048576B g2", 300, "gemm bf16 1024x1024x1024 on 2 ranks");
  const auto predicted = [](const WorkProfile& p) {
    write("p.json", json(p));
    return answer({"simulate", "--plan", "tiny.json", "--profile", "p.json"});
  };
  const json as_is = predicted(bare);
  EXPECT_EQ(as_is.at("prediction").at("predicted_from").at("measured_share"), 0);
  EXPECT_GT(as_is.at("profile").at("constants").size(), 5U);
  for (std::size_t i = 0; i < bare.facts->measurements.size(); ++i) {
    WorkProfile slower = bare;
    MachineMeasurement& m = slower.facts->measurements[i];
    m.median_us *= 2;
    const double changed = simulated(predicted(slower)) - simulated(as_is);
    if (!m.concurrent_with.empty() || !m.what.ends_with("on 2 ranks")) {
      // What an exchange takes alone is also what it is lengthened from.
      if (m.what == "all_reduce 1048576B g2" && m.concurrent_with.empty()) continue;
      EXPECT_GT(changed, 0) << m.what << " beside " << m.concurrent_with;
    } else {
      EXPECT_LT(changed, 0) << m.what << ": interference is less";
    }
  }
  WorkProfile unknown = bare;  // negative control
  unknown.facts->measurements.emplace_back().what = "attention of another version";
  unknown.facts->measurements.back().median_us = 1e9;
  EXPECT_EQ(simulated(predicted(unknown)), simulated(as_is));
  const json run = answer({"run", "tiny.json", "--steps", "1", "--profile", "p.json"});
  EXPECT_NEAR(run.at("steps").at(0).at("predicted_step_time_s").get<double>() / simulated(as_is), 1, 1e-9);
}

TEST_F(Profiles, PlansAreRankedByTheTableAndNothingIsProved) {
  const Words plan = Words{"plan"} + question();
  const json plain = answer(plan);
  const std::string best = plain.at("ranked").at(0).at("key");
  make("best.json", best);
  write("p.json", json(table("best.json", 5)));
  const json j = answer(plan + Words{"--profile", "p.json", "-o", "out.json"});
  EXPECT_FALSE(j.at("exact").get<bool>());
  EXPECT_TRUE(j.at("best_bound_s").is_null());
  EXPECT_TRUE(j.at("ranked_anew").at("analytic_exact").get<bool>());
  EXPECT_EQ(j.at("ranked_anew").at("layouts"), 30);
  double before = 0;
  for (const json& r : j.at("ranked")) {
    sums_to_one(r.at("predicted_from"));
    EXPECT_GE(r.at("step_time_s").get<double>(), before);
    before = r.at("step_time_s");
    const json alone = answer(Words{"simulate"} + question() +
                              Words{"--plan", r.at("key").get<std::string>(), "--profile", "p.json"});
    EXPECT_NEAR(alone.at("prediction").at("step_time_s").get<double>() / before, 1, 1e-12);
  }
  EXPECT_NEAR(load_plan_file("out.json").prediction.step_time_s.value, j.at("ranked")[0].at("step_time_s"),
              0);
  const Called text = call_in_full(plan + Words{"--profile", "p.json"});
  EXPECT_EQ(text.out.find("proved in"), std::string::npos) << "no proof is claimed";
  EXPECT_NE(text.out.find("is not proved"), std::string::npos);
  EXPECT_EQ(plain.contains("ranked_anew"), false);
}

TEST_F(Profiles, ExplainComparesByTheTable) {
  write("p.json", json(table("tiny.json", 3)));
  const json j = answer({"explain", "tiny.json", "--profile", "p.json", "--why", "tp2.z0.mbs2", "--quick"});
  EXPECT_EQ(j.at("chosen").at("predicted_from").at("measured_share"), 1);
  EXPECT_FALSE(j.at("exact").get<bool>());
  const json& why = j.at("why_not").at(0);
  EXPECT_LT(why.at("predicted_from").at("measured_share").get<double>(), 0.5);
  EXPECT_NEAR(why.at("comparison").at("chosen_step_time_s").get<double>(), j.at("chosen").at("step_time_s"),
              1e-12);
  EXPECT_EQ(answer({"explain", "tiny.json", "--quick"}).at("chosen").contains("predicted_from"), false);
}

TEST_F(Profiles, RefusalsSayWhatToDo) {
  const WorkProfile good = table("tiny.json", 1);
  WorkProfile other = good, none = good, nameless = good, unknown = good, vast = good;
  other.machine = "NVIDIA H100 80GB HBM3, cuBLASLt 13.0";
  none.works.clear();
  nameless.machine.clear();
  write("other.json", json(other));
  write("none.json", json(none));
  write("nameless.json", json(nameless));
  unknown.works.clear();
  unknown.facts.emplace().measurements.resize(1);
  unknown.facts->measurements[0].what = "foo";
  unknown.facts->measurements[0].median_us = 1;
  vast.facts.emplace().outside_GiB = 1e300;
  write("unknown.json", json(unknown));
  write("vast.json", json(vast));
  json spoilt = json(good);
  spoilt["operations"]["mlp sideways"] = spoilt["operations"].begin().value();
  write("spoilt.json", spoilt);
  for (const Words& verb : {Words{"simulate", "--plan", "tiny.json"}, Words{"explain", "tiny.json"},
                            Words{"plan"} + question()}) {
    const auto with = [&](const std::string& file) { return verb + Words{"--profile", file}; };
    bad_file(with("absent.json"), {"absent.json", "no such file"});
    bad_file(with("tiny.json"),
             {"tiny.json", "found a plan file of sextant", "what 'sextant profile -o' wrote"});
    bad_file(with("other.json"), {"other.json: machine: found NVIDIA H100 80GB HBM3",
                                  "expected a profile of cpu", "do not hold for another"});
    bad_file(with("nameless.json"), {"machine: found (not stated)"});
    bad_file(with("none.json"), {"none.json: operations: found none", "or of the machine by itself",
                                 "sextant profile --for plan.json"});
    bad_file(with("unknown.json"), {"unknown.json: operations: found none", "or of the machine by itself"});
    bad_file(with("vast.json"), {"vast.json: facts.outside_GiB: found 1e+300"});
    bad_file(with("spoilt.json"), {"mlp sideways"});
  }
  write("good.json", json(good));
  const Words plan = Words{"plan"} + question() + Words{"--profile", "good.json"};
  for (const Words& more : {Words{"--pareto"}, Words{"--scale", "2,4"}, Words{"--objective", "least-memory"},
                            Words{"--shortlist", "2", "-o", "list.json"}})
    usage(plan + more, {"--profile ranks the fastest layouts of one cluster"});
  refused(plan + Words{"-o", "good.json"}, ExitCode::usage, {"a file of its own"});
  EXPECT_NE(call_in_full({"simulate", "--plan", "plan.json", "--profile", "good.json"}).code, ExitCode::ok)
      << "of A100s";
}

// Kernels of another stack, and ranks that shared the cores with fewer.
TEST_F(Profiles, WhatWasMeasuredUnlikeThePlanIsNoted) {
  write("p.json", json(table("tiny.json", 1)));
  const auto notes = [](const char* stack) {
    return answer({"simulate", "--plan", "dp2.z1.mbs2", "--model", "stories-260k", "--cluster", "laptop",
                   "--stack", stack, "--seq-len", "64", "--global-batch", "8", "--profile", "p.json", "--set",
                   "device.memory_GiB=64"})
        .at("notes")
        .dump();
  };
  EXPECT_NE(notes("megatron-core").find("measured under this project's own runtime"), std::string::npos);
  EXPECT_EQ(notes("sextant").find("own runtime"), std::string::npos);
  EXPECT_NE(notes("sextant").find("measured with 1 rank at work, here are 2"), std::string::npos);
  WorkProfile beside = table("tiny.json", 1);
  beside.ranks = 2;
  write("p.json", json(beside));
  EXPECT_EQ(notes("sextant").find("at work"), std::string::npos) << "control";
}

// What a GPU's process takes beside its allocations, in the place of the stack's assumption; another stack's is another's.
TEST_F(Profiles, MemoryOutsideIsThatOfTheProfile) {
  WorkProfile p = table("tiny.json", 1);
  const auto peak = [&](double outside_GiB, const char* stack) {
    p.facts.emplace().outside_GiB = outside_GiB;
    write("p.json", json(p));
    return answer(Words{"simulate", "--plan", "dp2.z1.mbs2", "--model", "stories-260k", "--cluster", "laptop",
                        "--stack", stack, "--seq-len", "64", "--global-batch", "8", "--profile", "p.json",
                        "--set", "device.memory_GiB=64"});
  };
  const json assumed = peak(0, "sextant"), told = peak(0.25, "sextant");
  const auto gib_of = [](const json& j) { return j.at("prediction").at("peak_memory_GiB").get<double>(); };
  EXPECT_TRUE(assumed.at("profile").at("outside_GiB").is_null());
  EXPECT_EQ(told.at("profile").at("outside_GiB"), 0.25);
  EXPECT_NEAR(gib_of(assumed) - gib_of(told), 1.5 - 0.25, 1e-9);
  EXPECT_EQ(gib_of(peak(0, "megatron-core")), gib_of(peak(0.25, "megatron-core"))) << "control";
}

}  // namespace
}  // namespace sextant
