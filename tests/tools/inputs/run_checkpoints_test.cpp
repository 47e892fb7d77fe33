// `sextant run` with checkpoints, as its user sees it: what goes on, and what ends a run well.
#include "tests/tools/inputs/run_checkpoints.hpp"

#include <csignal>
#include <thread>

#include <unistd.h>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/run_folder.hpp"

namespace sextant {
namespace {

using namespace bad_input;

TEST_F(RunCheckpoints, GoesOnWhereItWas) {
  good({"two.json", "--steps", "6", "-o", "whole"});
  const Called half = run({"two.json", "--steps", "4", "--save-every", "2", "-o", "halves"});
  EXPECT_EQ(half.code, ExitCode::ok) << half.err;
  const auto line_of = [&](const std::string& step) {
    const auto at = half.out.find("checkpoint of step " + step + ":");
    return at == std::string::npos ? half.out : half.out.substr(at, half.out.find('\n', at) - at);
  };
  EXPECT_NE(line_of("2").find("overlapped with training, which it stalled for"), std::string::npos)
      << half.out;
  EXPECT_NE(line_of("2").find(" % of a step"), std::string::npos) << half.out;
  EXPECT_NE(line_of("4").find("the last; the end of the run waited"), std::string::npos) << half.out;
  EXPECT_EQ(saved("halves"), (std::vector<std::int64_t>{2, 4}));
  good({"-o", "halves", "--resume", "--steps", "6"});
  EXPECT_EQ(saved("halves"), (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(losses("halves"), losses("whole"));
  EXPECT_EQ(losses("whole").size(), 6U);
  const Called nothing = run({"-o", "halves", "--resume"});
  EXPECT_EQ(nothing.code, ExitCode::ok) << nothing.err;
  EXPECT_NE(nothing.out.find("nothing to do"), std::string::npos) << nothing.out;
  EXPECT_EQ(losses("halves"), losses("whole")) << "and nothing was done";
  const std::string options = text_of("halves/options.json"), plan = text_of("halves/plan.json");
  good({"tp.json", "-o", "halves", "--resume", "--lr", "1"});
  EXPECT_EQ(text_of("halves/options.json"), options) << "nor is it another run from now on";
  EXPECT_EQ(text_of("halves/plan.json"), plan);
}

TEST_F(RunCheckpoints, GoesOnUnderAnotherPlanAndKeepsItsOptions) {
  good({"two.json", "--steps", "3", "-o", "run", "--lr", "0.007", "--seed", "5"});
  good({"tp.json", "-o", "run", "--resume", "--steps", "5"});
  ASSERT_EQ(losses("run").size(), 5U);
  for (const json& step : steps("run")) EXPECT_DOUBLE_EQ(step.at("lr"), 0.007);
  json plan;
  std::ifstream("run/plan.json") >> plan;
  EXPECT_EQ(plan.at("plan").at("tp"), 2) << "its own plan from now on";
  EXPECT_EQ(Checkpoint::open("run").manifest().seed, 5);
  good({"-o", "run", "--resume", "--steps", "6"});
}

TEST_F(RunCheckpoints, WhatIsNotGivenIsAsItWas) {
  std::string text;
  for (char c = 'a'; c <= 'p'; ++c) text.append(400, c).append("\n\n");
  write("text.txt", text);
  ASSERT_EQ(call({"data", "text.txt", "--tokenizer", "bytes", "--document", "paragraph", "--validation",
                  "0.5", "--seed", "2", "--out", "tokens"})
                .code,
            ExitCode::ok);
  const Words options = {"--save-every", "4",      "--keep-last",  "3", "--keep-every",   "4",
                         "--data",       "tokens", "--eval-every", "4", "--eval-batches", "1",
                         "--gemms",      "exact"};
  good(Words{"two.json", "--steps", "24", "-o", "whole"} + options);
  good(Words{"two.json", "--steps", "12", "-o", "run"} + options);
  const auto before = saved("run");
  ASSERT_GE(before.size(), 2U);
  const fs::path here = fs::current_path(), run_folder = fs::absolute("run");
  fs::create_directory("elsewhere");
  fs::current_path("elsewhere");
  const Called o = run({"-o", run_folder.string(), "--resume", "--steps", "24"});
  fs::current_path(here);
  EXPECT_EQ(o.code, ExitCode::ok) << o.err;
  EXPECT_NE(o.out.find("--keep-every 4"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("--steps 24 (was 12)"), std::string::npos) << o.out;
  for (const std::int64_t milestone : before) EXPECT_TRUE(fs::exists(checkpoint_path("run", milestone)));
  EXPECT_GT(saved("run").size(), before.size() + 1) << "and it is saved between";
  const auto values = [](const std::string& folder) {  // losses of both kinds
    std::vector<double> all;
    for (const json& step : steps(folder))
      all.push_back(step.contains("loss") ? step.at("loss") : step.at("validation_loss"));
    return all;
  };
  EXPECT_EQ(values("run"), values("whole")) << "bit by bit, with the looks at the held-out text";

  // A run from before options were kept: what was saved stays.
  fs::remove("run/options.json");
  fs::remove("run/plan.json");
  const auto all = saved("run");
  edit_manifest(manifest_of("run", all.back()), [](json& m) { m.erase("options"); });
  const Called old = run({"-o", "run", "--resume", "--steps", "28", "--save-every", "1"});
  EXPECT_EQ(old.code, ExitCode::ok) << old.err;
  EXPECT_NE(old.out.find("plan.json: no such file: its plan is that of"), std::string::npos) << old.out;
  EXPECT_NE(old.out.find("not kept in the folder of this run"), std::string::npos) << old.out;
  for (const std::int64_t step : all) EXPECT_TRUE(fs::exists(checkpoint_path("run", step)));
  fs::rename("tokens", "moved");
  bad_file({"run", "-o", "run", "--resume", "--steps", "30"}, {"tokens", "no such folder", "--data"});
  good({"-o", "run", "--resume", "--steps", "30", "--data", "moved"});
}

TEST_F(RunCheckpoints, ACheckpointFromBeforePlansHadADigest) {
  good({"two.json", "--steps", "2", "-o", "run"});
  const std::string file = manifest_of("run", 2);
  edit_manifest(file, [](json& m) {
    m.at("plan").erase("digest");
    write("run/plan.json", m.at("plan").dump());
  });
  const Called o = run({"-o", "run", "--resume", "--steps", "3"});
  EXPECT_EQ(o.code, ExitCode::ok) << o.err;
  EXPECT_NE(o.out.find("its plan is that of " + file), std::string::npos) << o.out;
  write("run/plan.json", std::string());
  good({"-o", "run", "--resume", "--steps", "4"});
}

TEST_F(RunCheckpoints, StepsThatTheLogHasLostAreTold) {
  good({"two.json", "--steps", "6", "-o", "whole"});
  const auto all = losses("whole");
  const auto goes_on = [&](const std::vector<int>& kept, const std::string& lost) {
    good({"two.json", "--steps", "5", "-o", "run"});
    std::string log;
    for (const int step : kept) log += steps("run").at(static_cast<std::size_t>(step)).dump() + "\n";
    write("run/steps.jsonl", log);
    const Called o = run({"-o", "run", "--resume", "--steps", "6"});
    const std::string& err = o.err;
    EXPECT_EQ(o.code, ExitCode::ok) << err;
    EXPECT_EQ(err.find("no whole line is there of step"), err.rfind("no whole line is there of step"));
    EXPECT_EQ(err.find("run/steps.jsonl: no whole line is there of step " + lost) != std::string::npos,
              !lost.empty())
        << err;
    EXPECT_EQ(err.empty(), lost.empty()) << err;
    EXPECT_EQ(fs::exists("run/aside-steps.jsonl") && text_of("run/aside-steps.jsonl") == log,
              !lost.empty() && !log.empty());
    EXPECT_EQ(steps("run").size(), kept.size() + 1);
    EXPECT_DOUBLE_EQ(steps("run").back().at("loss"), all[5]);
    fs::remove_all("run");
  };
  goes_on({}, "0 to 4, which the checkpoint of step 5");
  goes_on({0, 1}, "2 to 4,");
  goes_on({0, 2, 4}, "1, 3, which");
  goes_on({0, 1, 2, 3, 4}, "");
}

TEST_F(RunCheckpoints, StepsThatAKilledRunWroteBeyondItsCheckpointAreDoneAgain) {
  good({"two.json", "--steps", "6", "-o", "whole"});
  good({"two.json", "--steps", "4", "-o", "killed"});
  std::ofstream("killed/steps.jsonl", std::ios::app) << R"({"step": 4, "loss": 0})"
                                                     << "\n{\"step\": 5, \"lo";
  good({"-o", "killed", "--resume", "--steps", "6"});
  EXPECT_EQ(losses("killed"), losses("whole"));
}

TEST_F(RunCheckpoints, AnEarlierCheckpointSetsLaterOnesAside) {
  good({"two.json", "--steps", "12", "--save-every", "4", "--keep-last", "9", "-o", "run"});
  const auto before = saved("run");
  ASSERT_GE(before.size(), 2U);
  const std::vector<double> whole = losses("run");
  good({"-o", "run", "--resume", "--resume-step", std::to_string(before[0]), "--save-every", "0"});
  EXPECT_EQ(saved("run"), (std::vector<std::int64_t>{before[0], 12}));
  EXPECT_TRUE(fs::exists("run/checkpoints/aside-step-00000012"));
  EXPECT_EQ(losses("run"), whole);
  refused({"run", "-o", "run", "--resume", "--resume-step", "5"}, ExitCode::bad_input,
          {"run", "no checkpoint of step 5", "one of"});
}

TEST_F(RunCheckpoints, WithoutACheckpointItStartsWhereTheFolderIsThere) {
  usage({"run", "two.json", "--steps", "2", "-o", "new", "--resume"},
        {"-o: found new, expected the folder of a run", "without --resume a run is begun there", "mkdir"});
  fs::create_directory("new");
  good({"two.json", "--steps", "2", "-o", "new", "--resume"});
  EXPECT_EQ(losses("new").size(), 2U);
  good({"two.json", "--steps", "2", "-o", "unsaved", "--no-save"});
  EXPECT_TRUE(saved("unsaved").empty());
  const std::string before = text_of("unsaved/steps.jsonl");
  good({"-o", "unsaved", "--resume", "--steps", "3"});
  EXPECT_EQ(losses("unsaved").size(), 3U);
  EXPECT_EQ(text_of("unsaved/aside-steps.jsonl"), before);
}

TEST_F(RunCheckpoints, TimeLimitStopFileAndSignalsEndItWell) {
  good({"two.json", "--steps", "100000000", "-o", "limited", "--time-limit-s", "0.3"});
  ASSERT_EQ(saved("limited").size(), 1U);
  EXPECT_EQ(saved("limited")[0], static_cast<std::int64_t>(losses("limited").size()));

  const auto end_by = [&](const std::string& folder, const Words& more, const auto& how) {
    std::jthread other([&] {
      while (!fs::exists(folder + "/steps.jsonl") || text_of(folder + "/steps.jsonl").empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      how();
    });
    const Called o = run(Words{"two.json", "--steps", "100000000", "-o", folder} + more);
    EXPECT_EQ(saved(folder).size(), 1U);
    EXPECT_EQ(saved(folder).back(), static_cast<std::int64_t>(losses(folder).size()));
    EXPECT_NE(o.out.find("stopped: "), std::string::npos);
    return o.code;
  };
  EXPECT_EQ(end_by("by-file", {"--stop-file", "stop"}, [] { std::ofstream("stop") << ""; }), ExitCode::ok);
  EXPECT_EQ(end_by("by-term", {}, [] { std::raise(SIGTERM); }), ExitCode::ok);
  EXPECT_EQ(end_by("by-usr1", {}, [] { std::raise(SIGUSR1); }), ExitCode::ok);
  EXPECT_EQ(end_by("by-hup", {}, [] { std::raise(SIGHUP); }), ExitCode::ok);
  EXPECT_EQ(end_by("by-many", {},
                   [] {
                     for (const int number : {SIGTERM, SIGTERM, SIGUSR1, SIGUSR1, SIGHUP, SIGINT})
                       std::raise(number);
                   }),
            ExitCode::ok)
      << "as the first asked";
  EXPECT_EQ(end_by("by-int", {}, [] { std::raise(SIGINT); }), ExitCode::interrupted) << "saved all the same";
}

TEST_F(RunCheckpoints, LinesAreAsWideAsTheTerminal) {
  const auto widest = [](const Words& words, int columns, ExitCode code = ExitCode::ok) {
    const Called o = call(Words{"run", "--lr-final-ratio", "1"} + words, columns);
    EXPECT_EQ(o.code, code) << o.err;
    std::istringstream lines(o.out);
    int most = 0;
    for (std::string line; std::getline(lines, line);) most = std::max(most, display_width(line));
    return std::pair{most, o.out};
  };
  const Words first = {"two.json", "--steps", "6", "--save-every", "2", "--gemms", "exact"};
  const Words on = {"--resume", "--save-every", "3", "--keep-last", "4", "--lr", "0.5", "--steps", "9"};
  EXPECT_LE(widest(first + Words{"-o", "narrow"}, 80).first, 80);
  EXPECT_LE(widest(on + Words{"-o", "narrow"}, 80).first, 80);
  EXPECT_LE(widest(first + Words{"-o", "wide"}, 120).first, 120);
  const auto [most, text] = widest(first + Words{"-o", "piped"}, kUnlimitedColumns);
  EXPECT_GT(most, 80) << "control: a file has whole lines\n" << text;
  // Weights that every update multiplies by -99: large losses, and soon none that is finite.
  const auto [diverged, rows] = widest({"two.json", "--steps", "40", "--lr", "10", "--weight-decay", "10",
                                        "--clip", "1e9", "--max-skipped", "3"},
                                       80, ExitCode::run_failed);
  EXPECT_LE(diverged, 80) << rows;
  EXPECT_NE(rows.find("\n       skipped: loss or gradients are not finite\n"), std::string::npos) << rows;
}

}  // namespace
}  // namespace sextant
