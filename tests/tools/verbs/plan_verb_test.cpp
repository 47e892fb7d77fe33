// `sextant plan` and `sextant simulate` over a small space: what is printed agrees with itself, and with the
// plan file that one writes and the other reads.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/plan/plan_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/plan_question.hpp"
#include "tools/verbs/plan_answers.hpp"

namespace sextant {
namespace {

using namespace plan_question;

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

// What `explain` takes as an argument, `simulate` does too.
TEST(Simulate, TakesItsLayoutAsAnArgument) {
  const auto named = call_in_full(small_question("simulate", {"--plan", "tp2.dp8.z1.mbs1"}));
  const auto given = call_in_full(small_question("simulate", {"tp2.dp8.z1.mbs1"}));
  EXPECT_EQ(given.code, ExitCode::ok) << given.err;
  EXPECT_EQ(given.out, named.out);
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

// The search for the fastest ends after half a minute, unless another time is asked for.
TEST(Plan, LosesPatience) {
  PlanOptions options;
  EXPECT_EQ(options.patience_s, 30);
  options.details = true;
  options.question.model = "llama-2-7b";
  options.question.cluster = "2x8xa100-80gb";
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
  EXPECT_NE(hurried.find("--budget-s SECONDS gives the search another time than half a minute."),
            std::string::npos);
  options.details = false;
  const std::string early =
      "The search ended early: with more time (--budget-s SECONDS) it may find a better layout.";
  EXPECT_NE(answer().find(early), std::string::npos);
  options.budget_s = 60;
  const std::string unhurried = answer();
  EXPECT_NE(unhurried.find(", proved"), std::string::npos) << unhurried;
  EXPECT_EQ(unhurried.find(early), std::string::npos);
}

TEST(Plan, JsonAgreesWithItself) {
  const auto outcome = call_in_full(small_question("plan", {"--json", "--top", "3"}));
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
  const auto planned = call_in_full(small_question("plan", {"--json", "-o", path}));
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
    peak = std::max(peak, stage.at("memory_GiB").at("needed").get<double>());
  EXPECT_NEAR(peak, best.at("peak_memory_GiB").get<double>(), 1e-9);
  // Another network is another prediction.
  const auto slow = nlohmann::json::parse(
      call_in_full({"simulate", "--plan", path, "--json", "--set", "fabric.bandwidth_GBps=2"}).out);
  EXPECT_GT(slow.at("prediction").at("step_time_s").get<double>(), step);
}

TEST(Plan, TablesFitTheTerminal) {
  for (const int columns : {80, 120}) {
    const auto outcome = call_in_full(small_question("plan"), columns);
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
  const auto answer = nlohmann::json::parse(outcome.out);
  for (const auto& r : answer.at("ranked")) {
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

TEST(Plan, TheFileSaysWhereItsStepGoes) {
  const TempDir dir;
  const std::string path = (dir.path() / "plan.json").string();
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"--objective", "least-memory"},
           {"--objective", "tokens-per-dollar", "--price-per-gpu-hour", "2"}}) {
    auto asked = more;
    asked.insert(asked.end(), {"-o", path});
    ASSERT_EQ(call_in_full(small_question("plan", asked)).code, ExitCode::ok);
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
      const auto outcome = call_in_full(small_question("plan", more), columns);
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

TEST(Simulate, WritesATraceAndSaysWhatDoesNotFit) {
  const TempDir folder;
  const std::string trace = (folder.path() / "t.json").string();
  const auto good =
      call_in_full(small_question("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--trace", trace}));
  EXPECT_EQ(good.code, ExitCode::ok) << good.err;
  double end = 0;
  const auto written = nlohmann::json::parse(read_text_file(trace));
  for (const auto& event : written.at("traceEvents"))
    if (event.at("ph") == "X")
      end = std::max(end, event.at("ts").get<double>() + event.at("dur").get<double>());
  const auto same = call_in_full(small_question("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--json"}));
  const double step = nlohmann::json::parse(same.out).at("prediction").at("step_time_s");
  EXPECT_NEAR(end * 1e-6, step, 1e-8) << "a trace is as long as the step that is printed";
  EXPECT_NE(good.out.find("the trace is as long as the step: its operations end at "), std::string::npos)
      << good.out;
  const auto large = call_in_full(small_question("simulate", {"--plan", "tp1.dp16.z0.mbs16"}));
  EXPECT_EQ(large.code, ExitCode::no_feasible_plan);
  EXPECT_NE(large.out.find("does not fit: needs "), std::string::npos) << large.out;
  // In words, not as the key of a JSON field.
  const auto state = call_in_full(small_question("simulate", {"--plan", "tp1.dp16.z0.mbs1"}));
  EXPECT_NE(unwrapped(state.out).find("(most of it optimizer state of stage 0)"), std::string::npos)
      << state.out;
  EXPECT_EQ(call_in_full(small_question("simulate", {"--plan", "tp8.pp8.dp8"})).code,
            ExitCode::no_feasible_plan);
  EXPECT_EQ(call_in_full(small_question("simulate", {"--plan", "tp3.dp4"})).code, ExitCode::usage);
  EXPECT_EQ(call_in_full(small_question("simulate")).code, ExitCode::usage);
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
