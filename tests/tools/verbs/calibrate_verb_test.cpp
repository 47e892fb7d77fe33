// `sextant calibrate` as a user meets it: from a log to a better prediction, from a shortlist, and bad input.
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/csv.hpp"
#include "core/base/file_io.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/calibrate_question.hpp"
#include "tests/tools/verbs/call.hpp"

namespace sextant {
namespace {

using Json = nlohmann::json;

double simulated(const std::string& calibration) {
  auto arguments = with_question({"simulate", "--json", "--plan", "tp2.pp2.dp16.z1.mbs1.sel"});
  if (!calibration.empty()) arguments.insert(arguments.end(), {"--calibration", calibration});
  return Json::parse(call(arguments).out).at("prediction").at("step_time_s").get<double>();
}

TEST(CalibrateVerb, FromALogToABetterPrediction) {
  const TempDir folder;
  const std::string log = folder.write("train.log", call({"calibrate", "--example"}).out).string();
  const std::string file = (folder.path() / "c.json").string();
  const auto outcome = call(with_question({"calibrate", "--log", log, "-o", file, "--json"}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json run = Json::parse(outcome.out).at("runs").at(0);
  const double measured = run.at("measured_s");
  EXPECT_NEAR(measured, 31.25, 0.1);  // the example's steady step
  const double before = run.at("before_s"), after = run.at("after_s");
  EXPECT_LT(std::abs(after / measured - 1), std::abs(before / measured - 1));
  // The verbs that predict use it; without it nothing changes.
  EXPECT_LT(std::abs(simulated(file) / measured - 1), std::abs(simulated("") / measured - 1));
}

TEST(CalibrateVerb, AStepThatCannotBeReadIsAWarningAndTheWarmUpIsNoMeasurement) {
  const TempDir folder;
  std::string text = call({"calibrate", "--example"}).out;
  text.replace(text.find("31250.7"), 7, "nan");
  const std::string log = folder.write("train.log", text).string();
  const auto outcome = call(with_question({"calibrate", "--log", log, "--json"}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  EXPECT_NE(outcome.err.find("warning: " + log + ":15: elapsed time"), std::string::npos) << outcome.err;
  const Json answer = Json::parse(outcome.out);
  EXPECT_DOUBLE_EQ(answer.at("runs").at(0).at("measured_s"), 31.1902);
  EXPECT_EQ(answer.at("warnings").size(), 1U);
  folder.write("train.log", text.substr(0, text.find(" iteration        2")));
  const auto warm_up = call(with_question({"calibrate", "--log", log}));
  EXPECT_EQ(warm_up.code, ExitCode::bad_input);
  EXPECT_NE(warm_up.err.find("which warms up"), std::string::npos) << warm_up.err;
}

// One file, one layout, one interval: what plan ranks says what simulate says, and so does explain.
TEST(CalibrateVerb, PlanAndExplainStateSimulatesInterval) {
  const TempDir folder;
  const std::string log = folder.write("train.log", call({"calibrate", "--example"}).out).string();
  const std::string file = (folder.path() / "c.json").string();
  ASSERT_EQ(call(with_question({"calibrate", "--log", log, "-o", file})).code, ExitCode::ok);
  const auto asked = [&](std::vector<std::string> arguments, bool calibrated = true) {
    if (calibrated) arguments.insert(arguments.end(), {"--calibration", file});
    arguments.push_back("--json");
    return Json::parse(call(with_question(std::move(arguments))).out);
  };
  const auto upper = [](const Json& j) {
    return j.at("step_time_s_upper").get<double>() / j.at("step_time_s").get<double>();
  };
  const std::vector<std::string> pinned = {"--fix", "cp=1,oo=0,po=0,ao=0,pp=2,tp=2,mbs=1,z=1,b=0,lb=1"};
  const std::vector<std::string> plan = std::vector<std::string>{"plan", "--top", "2"} + pinned;
  const Json ranked = asked(plan).at("ranked");
  for (const Json& r : ranked) {
    const std::string key = r.at("key");
    EXPECT_NEAR(upper(r), upper(asked({"simulate", "--plan", key}).at("prediction")), 1e-9) << key;
  }
  const std::string first = ranked.at(0).at("key");
  EXPECT_NEAR(
      upper(ranked.at(0)),
      upper(asked(std::vector<std::string>{"explain", "--quick", "--plan", first} + pinned).at("chosen")),
      1e-9);
  EXPECT_GT(std::abs(upper(ranked.at(0)) - upper(asked(plan, false).at("ranked").at(0))), 1e-4);
}

TEST(CalibrateVerb, ComparesPeaksOfLogs) {
  const TempDir folder;
  const std::string text =
      call({"calibrate", "--example"}).out +
      "[Rank 0] memory (MB) | allocated: 1.0 | max allocated: 40960.0 | reserved: 50000.0\n";
  const std::string log = folder.write("train.log", text).string();
  const auto outcome = call(with_question({"calibrate", "--log", log, "--json"}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json run = Json::parse(outcome.out).at("runs").at(0);
  EXPECT_DOUBLE_EQ(run.at("measured_peak_GiB"), 40);
  EXPECT_EQ(run.at("memory_kind"), "torch_allocated");
  EXPECT_GT(run.at("predicted_peak_GiB"), 10.0);
  EXPECT_NE(call(with_question({"calibrate", "--log", log})).out.find("peak GiB"), std::string::npos);
}

// What a profile measured is where the fit starts from, and stays in the file; another device's is refused.
TEST(CalibrateVerb, StartsFromAProfileOfTheDevice) {
  const TempDir folder;
  const std::string profile =
      folder
          .write(
              "profile.json",
              R"({"schema": "sextant.profile/1", "machine": "NVIDIA A100-SXM4-80GB, cuBLASLt", "date": "2026-11-20",
                     "operations": {"state update n1000000000 bf16 fp32": {"mean_us": 25000, "median_us": 25000},
                               "state norm n1000000000 bf16 fp32": {"mean_us": 8000, "median_us": 8000}}})")
          .string();
  const std::string file = (folder.path() / "c.json").string();
  const auto outcome = call(with_question({"calibrate", "--profile", profile, "-o", file}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const Json kept = Json::parse(read_text_file(file));
  EXPECT_EQ(kept.at("profiles").at(0), "NVIDIA A100-SXM4-80GB, cuBLASLt; 2026-11-20");
  double value = 0, preset = 0;
  for (const auto& c : kept.at("constants"))
    if (c.at("key") == "memory_efficiency") {
      value = c.at("value");
      preset = c.at("preset");
    }
  // 25 bytes an element in 25 us a million is 1000 of 2039 GB/s: half of what the preset thinks can be reached.
  EXPECT_LT(value, 0.75 * preset);
  EXPECT_GT(value, 0.4);
  EXPECT_GT(simulated(file), simulated(""));
  // Runs beside it start from there.
  const std::string log = folder.write("train.log", call({"calibrate", "--example"}).out).string();
  const auto both = call(with_question({"calibrate", "--profile", profile, "--log", log, "--json"}));
  ASSERT_EQ(both.code, ExitCode::ok) << both.err;
  EXPECT_EQ(Json::parse(both.out).at("profiles").at(0).at("measured_operations"), 2);
  const auto other = call({"calibrate", "--profile", profile, "--cluster", "8x8xh100"});
  EXPECT_EQ(other.code, ExitCode::bad_input);
  EXPECT_NE(other.err.find("A100-SXM4-80GB"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("H100"), std::string::npos) << other.err;
}

// Presets beside what these runs say, of every coefficient that a plan fits from their source.
TEST(CalibrateVerb, NoRunIsFasterThanItsDevices) {
  const TempDir folder;
  EXPECT_EQ(call({"calibrate", "--runs", nanotron_runs(folder, {40, 41})}).code, ExitCode::ok);
  const auto fast = call({"calibrate", "--runs", nanotron_runs(folder, {40, 41}, "10")});
  EXPECT_EQ(fast.code, ExitCode::bad_input);
  for (const char* told : {"r0", "a step of 10 s", "64 x A100-SXM4-80GB need at their peak"})
    EXPECT_NE(fast.err.find(told), std::string::npos) << fast.err;
}

// Rows of the example run, each with these cells changed.
std::string runs_with(const TempDir& folder, const std::vector<std::map<std::string, std::string>>& changed) {
  const CsvTable example = parse_csv(call({"validate", "--example"}).out, "example");
  std::string text;
  for (const std::string& name : example.columns) text += (text.empty() ? "" : ",") + name;
  for (const auto& own : changed) {
    text += '\n';
    for (std::size_t i = 0; i < example.columns.size(); ++i) {
      const auto at = own.find(example.columns[i]);
      text += (i ? "," : "") + csv_field(at == own.end() ? example.rows[0].cells[i] : at->second);
    }
  }
  return folder.write("runs.csv", text + "\n").string();
}

// Two runs of which all is the same but the time: both are named, with both times and what is predicted for them.
TEST(CalibrateVerb, RunsThatContradictEachOtherAreNamed) {
  const TempDir folder;
  const auto with = [&](const char* second, const char* tp) {
    const bool two = std::string(tp) == "2";
    return runs_with(folder,
                     {{{"run_id", "a"}, {"step_time_s", "30"}},
                      {{"run_id", "b"}, {"step_time_s", second}, {"tp", tp}, {"dp", two ? "16" : "8"}},
                      {{"run_id", "c"}, {"step_time_s", "31"}, {"model", "other name"}}});
  };
  const std::string runs = with("60", "2");
  const auto told = call({"calibrate", "--runs", runs});
  ASSERT_EQ(told.code, ExitCode::ok) << told.err;
  const auto one_line = [](std::string text) {
    for (char& c : text)
      if (c == '\n') c = ' ';
    return text;
  };
  const std::string out = one_line(told.out);
  EXPECT_NE(out.find("inconsistent: "), std::string::npos) << told.out;
  for (const std::string& part : {runs + ":2 (a) took 30 s", runs + ":3 (b) 60 s"})
    EXPECT_NE(out.find(part), std::string::npos) << told.out;
  const Json pairs = Json::parse(call({"calibrate", "--runs", runs, "--json"}).out).at("inconsistencies");
  ASSERT_EQ(pairs.size(), 1U);
  EXPECT_EQ(pairs[0].at("run_ids"), Json({"a", "b"}));
  EXPECT_EQ(pairs[0].at("measured_s"), Json({30.0, 60.0}));
  // Negative controls: times that scatter as runs do, and another layout.
  for (const std::string& sound : {with("33", "2"), with("60", "4")}) {
    const auto quiet = call({"calibrate", "--runs", sound});
    EXPECT_EQ(quiet.code, ExitCode::ok) << quiet.err;
    EXPECT_EQ(quiet.out.find("inconsistent: "), std::string::npos) << quiet.out;
  }
}

// A folder stands for its tables of runs, as in validate; what else lies there is told.
TEST(CalibrateVerb, AFolderStandsForItsTablesOfRuns) {
  const TempDir folder, empty;
  const std::string file = runs_with(folder, {{{"run_id", "a"}, {"step_time_s", "33"}}});
  folder.write("other.csv", "size,time\n1,2\n");
  const auto of_file = call({"calibrate", "--runs", file}),
             of_folder = call({"calibrate", "--runs", folder.path().string()});
  ASSERT_EQ(of_folder.code, ExitCode::ok) << of_folder.err;
  EXPECT_EQ(of_folder.out, of_file.out);
  EXPECT_NE(of_folder.out.find("next: "), std::string::npos);
  EXPECT_NE(of_folder.err.find("left out: "), std::string::npos) << of_folder.err;
  EXPECT_NE(of_folder.err.find("other.csv"), std::string::npos) << of_folder.err;
  const auto none = call({"calibrate", "--refit", "--runs", empty.path().string()});
  EXPECT_EQ(none.code, ExitCode::bad_input);
  EXPECT_NE(none.err.find("a folder without CSV files"), std::string::npos) << none.err;
}

// Of a table without times: what to measure first, and less uncertainty with each; what was measured already is not named.
TEST(CalibrateVerb, SuggestsWhichRunsToMeasureFirst) {
  const TempDir folder;
  const auto table = [&](const char* first_step) {
    return runs_with(folder, {{{"run_id", "a"}, {"step_time_s", first_step}},
                              {{"run_id", "twin"}},
                              {{"run_id", "b"}, {"tp", "8"}, {"dp", "4"}},
                              {{"run_id", "c"}, {"tp", "1"}, {"pp", "1"}, {"dp", "64"}},
                              {{"run_id", "d"}, {"seq_len", "8192"}}});
  };
  const auto asked = [&](const char* first_step, const char* count) {
    const auto outcome = call({"calibrate", "--suggest", count, "--runs", table(first_step), "--json"});
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json open = asked("", "3");
  EXPECT_EQ(open.at("measured"), 0);
  EXPECT_EQ(open.at("candidates").get<int>() + open.at("too_large").get<int>(), 5);
  ASSERT_GE(open.at("suggested").size(), 2U);
  double uncertainty = open.at("uncertainty_percent");
  int twins = 0;
  for (const Json& s : open.at("suggested")) {
    EXPECT_LT(s.at("uncertainty_left_percent"), uncertainty);
    uncertainty = s.at("uncertainty_left_percent");
    twins += s.at("run_id") == "a" || s.at("run_id") == "twin";
  }
  EXPECT_LE(twins, 1);
  const Json later = asked("40", "9");
  EXPECT_EQ(later.at("measured"), 1);
  EXPECT_LT(later.at("uncertainty_percent"), open.at("uncertainty_percent"));
  for (const Json& s : later.at("suggested")) EXPECT_NE(s.at("run_id"), "a");
  const auto text = call({"calibrate", "--suggest", "2", "--runs", table("")});
  EXPECT_NE(text.out.find("measure first"), std::string::npos) << text.out;
  // Negative controls: nothing left to measure, and options that it does not go with.
  EXPECT_EQ(call({"calibrate", "--suggest", "2", "--runs", nanotron_runs(folder, {40, 41})}).code,
            ExitCode::bad_input);
  EXPECT_EQ(call({"calibrate", "--suggest", "2"}).code, ExitCode::usage);
  EXPECT_EQ(call({"calibrate", "--suggest", "2", "--refit", "--runs", table("")}).code, ExitCode::usage);
}

TEST(CalibrateVerb, ARowThatWasGivenTwiceCountsOnce) {
  const TempDir folder;
  const auto runs_of = [&](const char* step) {
    return Json::parse(call({"calibrate", "--json", "--runs",
                             runs_with(folder, {{{"step_time_s", "30"}}, {{"step_time_s", step}}})})
                           .out);
  };
  const Json twice = runs_of("30"), apart = runs_of("31");
  EXPECT_EQ(twice.at("runs").size(), 1U);
  EXPECT_NE(twice.at("notes").dump().find("runs.csv:3: example-1 was given before"), std::string::npos);
  EXPECT_EQ(apart.at("runs").size(), 2U);
  EXPECT_NE(apart.at("notes").dump().find("2 runs have the run_id example-1"), std::string::npos);
}

TEST(CalibrateVerb, SmallSizesInsideANodeAreNotEnough) {
  const TempDir folder;
  const std::string table = folder
                                .write("all_reduce.txt",
                                       "#  Rank  0 Group  0 Pid 1 on node0 device 0\n"
                                       "#  Rank  1 Group  0 Pid 2 on node0 device 1\n"
                                       "# size count type redop root time algbw busbw #wrong\n"
                                       "1048576 262144 float sum -1 30.0 34.95 34.95 0 30.0 34.95 34.95 0\n")
                                .string();
  const auto outcome = call({"calibrate", "--nccl", table, "--cluster", "1x8xa100-80gb"});
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  EXPECT_NE(outcome.err.find("16 MiB"), std::string::npos) << outcome.err;
  EXPECT_EQ(call({"calibrate", "--nccl", table + "=alltoall", "--cluster", "1x8xa100-80gb"}).code,
            ExitCode::usage);
}

// All-reduces of eight GPUs of one node: 40 us and a bus rate of 464 GB/s.
TEST(CalibrateVerb, ATableThatAFitMakesWorseMovesNothing) {
  const TempDir folder;
  const auto table_of = [&](double bus_GBps) {
    std::string text;
    for (int rank = 0; rank < 8; ++rank)
      text += "#  Rank  " + std::to_string(rank) + " Group  0 Pid 1 on node0 device 0\n";
    for (double bytes = 1 << 24; bytes <= 8e9; bytes *= 2) {
      const auto size = std::to_string(static_cast<long long>(bytes));
      text += size + " 9 float sum -1 " + std::to_string(40 + 1.75 * bytes / bus_GBps / 1e3) + " 1 1 0\n";
    }
    return folder.write("all_reduce.txt", text).string();
  };
  const std::string file = (folder.path() / "c.json").string();
  const auto calibrated = [&](double bus_GBps) {
    const auto outcome = call({"calibrate", "--nccl", table_of(bus_GBps) + "=all_reduce", "--cluster",
                               "1x8xh100", "-o", file, "--json"});
    EXPECT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json stays = calibrated(464);
  const Json& network = stays.at("networks").at(0);
  EXPECT_FALSE(network.at("taken"));
  EXPECT_FALSE(stays.at("taken"));
  EXPECT_GT(network.at("fit_error_percent"), network.at("error_before_percent"));
  const Json kept = Json::parse(read_text_file(file));
  EXPECT_TRUE(kept.at("constants").empty());
  EXPECT_GT(kept.at("error_before_percent"), 1.0);
  EXPECT_EQ(kept.at("error_before_percent"), network.at("error_before_percent"));
  EXPECT_EQ(kept.at("error_after_percent"), network.at("error_before_percent"));
  const auto told = call({"calibrate", "--nccl", table_of(464) + "=all_reduce", "--cluster", "1x8xh100"});
  EXPECT_NE(told.out.find("which a fit does not better"), std::string::npos) << told.out;
  // Negative control: links that are slower than the preset.
  const Json moves = calibrated(380);
  EXPECT_TRUE(moves.at("networks").at(0).at("taken"));
  EXPECT_EQ(moves.at("calibration").at("constants").size(), 1U);
  EXPECT_LT(moves.at("calibration").at("error_after_percent"),
            moves.at("calibration").at("error_before_percent"));
}

TEST(CalibrateVerb, SaysWhatIsMissing) {
  const TempDir folder;
  EXPECT_EQ(call({"calibrate"}).code, ExitCode::usage);
  const std::string text = folder.write("x.log", "loss 1.0\n").string();
  const auto outcome = call(with_question({"calibrate", "--log", text}));
  EXPECT_EQ(outcome.code, ExitCode::bad_input);
  EXPECT_NE(outcome.err.find("elapsed time per iteration"), std::string::npos) << outcome.err;
  EXPECT_EQ(call({"calibrate", "--nccl", text}).code, ExitCode::usage);
  EXPECT_EQ(call({"plan", "--shortlist", "3", "--model", "llama-2-7b", "--cluster", "1x8xa100-80gb"}).code,
            ExitCode::usage);
}

}  // namespace
}  // namespace sextant
