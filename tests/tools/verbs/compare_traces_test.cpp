// `sextant compare` given traces of other frameworks, with a plan and without.
#include <cmath>

#include "tests/tools/traces/trace_fixtures.hpp"
#include "tests/tools/verbs/bad_input.hpp"

namespace sextant {
namespace {

using namespace bad_input;
using test::golden_trace;

class CompareTraces : public BadInput {
 protected:
  CompareTraces() : traces_(golden_trace("pp2_dp2").string()) {
    make("llama.json", "1x4xh100", "tp1.pp2.dp2.z1.mbs1");
  }
  static void make(const std::string& file, const std::string& cluster, const std::string& key) {
    const auto made = call({"simulate", "--model", "llama-3.2-1b", "--set", "model.n_layers=4", "--cluster",
                            cluster, "--stack", "megatron-core", "--seq-len", "4096", "--global-batch", "8",
                            "--plan", key, "-o", file});
    ASSERT_TRUE(fs::exists(file)) << made.err;
  }
  static double sum_of(const json& parts) {
    double all = 0;
    for (const auto& [key, seconds] : parts.items()) all += seconds.get<double>();
    return all;
  }
  std::string traces_;
};

TEST_F(CompareTraces, PredictedStandsBesideMeasured) {
  const auto shown = call({"compare", "llama.json", traces_});
  ASSERT_EQ(shown.code, ExitCode::ok) << shown.err;
  for (const char* word :
       {"PyTorch profiler: 4 of 4 ranks, NVIDIA H100 80GB HBM3", "GEMM", "bubble", "exposed DP",
        "host-bound gaps", "The step takes", "than predicted: ", "send recv"})
    EXPECT_TRUE(says(shown, word)) << word << shown.out;
  const json run = json::parse(call({"compare", "llama.json", traces_, "--json"}).out).at("runs").at(0);
  EXPECT_EQ(run.at("ranks"), 4);
  EXPECT_NEAR(sum_of(run.at("predicted_breakdown_s")), run.at("predicted_step_s").get<double>(), 1e-9);
  EXPECT_NEAR(sum_of(run.at("measured_breakdown_s")), run.at("measured_step_s").get<double>(), 1e-9);
  EXPECT_NEAR(sum_of(run.at("difference_s")),
              run.at("measured_step_s").get<double>() - run.at("predicted_step_s").get<double>(), 1e-9);
  // Predicted as simulate predicts it.
  json plan;
  std::ifstream("llama.json") >> plan;
  EXPECT_NEAR(run.at("predicted_step_s").get<double>(),
              plan.at("prediction").at("step_time_s").at("value").get<double>(), 1e-9);
  EXPECT_GT(run.at("predicted_breakdown_s").at("gemm").get<double>(), 0);
  EXPECT_GT(run.at("predicted_breakdown_s").at("attention").get<double>(), 0);
  EXPECT_EQ(run.at("predicted_breakdown_s").at("exposed_tp").get<double>(), 0);
  for (const auto& note : run.at("notes"))
    EXPECT_EQ(note.get<std::string>().find("attention cores"), std::string::npos) << note;
}

TEST_F(CompareTraces, AnotherModelShowsInItsAttentionCores) {
  const auto made =
      call({"simulate", "--model", "llama-3.2-1b", "--cluster", "1x4xh100", "--stack", "megatron-core",
            "--seq-len", "4096", "--global-batch", "8", "--plan", "tp1.pp2.dp2.z1.mbs1", "-o", "whole.json"});
  ASSERT_EQ(made.code, ExitCode::ok) << made.err;
  EXPECT_TRUE(says(call({"compare", "whole.json", traces_}, kUnlimitedColumns),
                   "runs 8 attention cores forward, and 32 were predicted"));
}

TEST_F(CompareTraces, OfAnotherMachineOrJobIsRefused) {
  make("a100.json", "1x4xa100-80gb", "tp1.pp2.dp2.z1.mbs1");
  bad_file({"compare", "a100.json", traces_}, {"NVIDIA H100 80GB HBM3", "A100", "--allow-other-device"});
  EXPECT_EQ(call({"compare", "a100.json", traces_, "--allow-other-device"}).code, ExitCode::ok);
  make("eight.json", "1x8xh100", "tp1.pp2.dp4.z1.mbs1");
  bad_file({"compare", "eight.json", traces_}, {"found 4 ranks", "8, as the plan has"});
  bad_file({"compare", "eight.json", traces_, "--allow-other-device"}, {"found 4 ranks"});
}

TEST_F(CompareTraces, WithoutAPlanTheMeasuredPartsArePrinted) {
  const auto shown = call({"compare", traces_});
  ASSERT_EQ(shown.code, ExitCode::ok) << shown.err;
  EXPECT_TRUE(says(shown, "measured ms"));
  EXPECT_FALSE(says(shown, "predicted"));
  const json run = json::parse(call({"compare", traces_, "--json"}).out).at("runs").at(0);
  EXPECT_FALSE(run.contains("predicted_step_s"));
  EXPECT_EQ(run.at("traced_ranks").size(), 4U);
  usage({"compare", traces_, "--max-error", "5"}, {"--max-error", "plan"});
}

TEST_F(CompareTraces, ToleranceTraceAndReport) {
  EXPECT_EQ(call({"compare", "llama.json", traces_, "--max-error", "100000"}).code, ExitCode::ok);
  EXPECT_EQ(call({"compare", "llama.json", traces_, "--max-error", "0.00001"}).code,
            ExitCode::outside_tolerance);
  ASSERT_EQ(call({"compare", "llama.json", traces_, "--trace", "seen.json"}).code, ExitCode::ok);
  const json events = json::parse(text_of("seen.json")).at("traceEvents");
  EXPECT_EQ(std::ranges::count_if(events, [](const json& e) { return e.at("ph") == "M"; }), 4);
  EXPECT_GT(events.size(), 400U);
  write("answer.json", call({"compare", "llama.json", traces_, "--json"}).out);
  const auto report = call({"report", "answer.json", "-o", "report.html"});
  EXPECT_EQ(report.code, ExitCode::ok) << report.err;
  EXPECT_NE(text_of("report.html").find("Predicted against measured"), std::string::npos);
}

TEST_F(CompareTraces, ATraceGivenElsewhereIsToldByItsContent) {
  const std::string file = golden_trace("pp2_dp2/rank0_trace.json.gz").string();
  bad_file({"simulate", "--plan", file, "--model", "llama-2-7b", "--cluster", "1x8xh100"},
           {"a profiler's trace", "sextant compare"});
  write("report.nsys-rep", std::string("x"));
  bad_file({"compare", "llama.json", "report.nsys-rep"}, {"nsys export -t sqlite"});
  write("note.json.gz", std::string("no trace"));
  bad_file({"compare", "llama.json", "note.json.gz"}, {"note.json.gz"});
  usage({"compare", "--scale", traces_}, {"--scale", "one plan"});
}

}  // namespace
}  // namespace sextant
