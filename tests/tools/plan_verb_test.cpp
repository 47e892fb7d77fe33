// `sextant plan` and `sextant simulate` over a small space: what is printed agrees with itself, and with the
// plan file that one writes and the other reads.
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/file_io.hpp"
#include "core/plan_file.hpp"
#include "tests/support/temp_dir.hpp"
#include "tools/command.hpp"

namespace sextant {
namespace {

struct Outcome {
  ExitCode code;
  std::string out, err;
};

Outcome call(const std::vector<std::string>& arguments, int columns = 80) {
  std::ostringstream out, err;
  const ExitCode code = run_command(arguments, {.out = out, .err = err, .columns = columns});
  return {code, out.str(), err.str()};
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

TEST(Plan, JsonAgreesWithItself) {
  const auto outcome = call(small("plan", {"--json", "--top", "3"}));
  ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
  const auto j = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(j.at("schema"), "sextant.plan/1");
  EXPECT_EQ(j.at("gpus"), 16);
  std::uint64_t sum = 0;
  for (const auto& [name, count] : j.at("fates").items()) sum += count.get<std::uint64_t>();
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
  const auto planned = call(small("plan", {"--json", "-o", path}));
  ASSERT_EQ(planned.code, ExitCode::ok) << planned.err;
  const auto best = nlohmann::json::parse(planned.out).at("ranked").at(0);
  const PlanFile file = load_plan_file(path);
  EXPECT_EQ(file.plan, best.at("plan").get<ParallelPlan>());
  EXPECT_EQ(file.provenance.command.at(1), "plan");

  const auto simulated = nlohmann::json::parse(call({"simulate", "--plan", path, "--json"}).out);
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
      call({"simulate", "--plan", path, "--json", "--set", "fabric.bandwidth_GBps=2"}).out);
  EXPECT_GT(slow.at("prediction").at("step_time_s").get<double>(), step);
}

TEST(Plan, TablesFitTheTerminal) {
  for (const int columns : {80, 120}) {
    const auto outcome = call(small("plan"), columns);
    ASSERT_EQ(outcome.code, ExitCode::ok) << outcome.err;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("next: ") == std::string::npos) {
        EXPECT_LE(display_width(line), columns) << line;
      }
    }
    EXPECT_NE(outcome.out.find("next: sextant simulate --model llama-2-7b"), std::string::npos);
  }
}

TEST(Plan, NothingFeasibleSaysWhyAndWritesNothing) {
  const TempDir folder;
  const std::string path = (folder.path() / "plan.json").string();
  const auto outcome = call({"plan", "--model", "llama-2-70b", "--cluster", "1x8xa100-40gb", "--fix",
                             "tp=8,pp=1,cp=1,oo=0,po=off,ao=0", "-o", path});
  EXPECT_EQ(outcome.code, ExitCode::no_feasible_plan);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("no layout is possible"), std::string::npos);
  EXPECT_NE(outcome.err.find("GiB"), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Plan, BadOptionsAreUsageErrors) {
  EXPECT_EQ(call({"plan"}).code, ExitCode::usage);
  EXPECT_EQ(call(small("plan", {"--top", "0"})).code, ExitCode::usage);
  EXPECT_EQ(call(small("plan", {"--fix", "tpp=4"})).code, ExitCode::usage);
  EXPECT_EQ(call(small("plan", {"--top"})).code, ExitCode::usage);
  EXPECT_NE(call(small("plan", {"-o", "/nonexistent/plan.json"})).code, ExitCode::ok);
}

TEST(Simulate, WritesATraceAndSaysWhatDoesNotFit) {
  const TempDir folder;
  const std::string trace = (folder.path() / "t.json").string();
  const auto good = call(small("simulate", {"--plan", "tp2.pp2.dp4.z1.mbs1", "--trace", trace}));
  EXPECT_EQ(good.code, ExitCode::ok) << good.err;
  EXPECT_FALSE(nlohmann::json::parse(read_text_file(trace)).at("traceEvents").empty());
  const auto large = call(small("simulate", {"--plan", "tp1.dp16.z0.mbs16"}));
  EXPECT_EQ(large.code, ExitCode::no_feasible_plan);
  EXPECT_NE(large.out.find("does not fit: needs "), std::string::npos) << large.out;
  EXPECT_EQ(call(small("simulate", {"--plan", "tp8.pp8.dp8"})).code, ExitCode::no_feasible_plan);
  EXPECT_EQ(call(small("simulate", {"--plan", "tp3.dp4"})).code, ExitCode::usage);
  EXPECT_EQ(call(small("simulate")).code, ExitCode::usage);
}

}  // namespace
}  // namespace sextant
