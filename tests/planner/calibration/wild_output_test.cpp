// Logs and tables as they lie in issues and on disks: behind launchers, collectors of logs and progress bars, of several ranks and runs.
// Texts are made up; forms are those of NVIDIA/nccl#1453 (tags inside lines), NVIDIA/nccl-tests#107 (built without MPI), Docker's
// json-file driver, Kubernetes' CRI logs, journald, NeMo's two ways to print a step.
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "planner/calibration/collector_tags.hpp"
#include "planner/calibration/launcher_tags.hpp"
#include "planner/calibration/log_text.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "planner/calibration/printed_machine.hpp"
#include "planner/calibration/run_log.hpp"

namespace sextant {
namespace {

using Lines = std::vector<std::string>;

const Lines kArguments = {"------------------------ arguments ------------------------",
                          "  data_parallel_size .............................. 4",
                          "  hidden_size ..................................... 5120",
                          "  micro_batch_size ................................ 1",
                          "  tensor_model_parallel_size ...................... 2"};

std::string step(int n, double ms) {
  return fmt::format(
      " [2024-04-06 02:59:{:02}] iteration {:8}/     100 | elapsed time per iteration (ms): {:.1f} | global "
      "batch size:   128 |",
      n, n, ms);
}
const Lines kSteps = {step(1, 60000), step(2, 16010), step(3, 16020), step(4, 16030)};

std::string text_of(const Lines& lines, const std::string& before = "", const std::string& end = "\n") {
  std::string out;
  for (const std::string& line : lines) out += before + line + end;
  return out;
}

// A rank, a stage or a layer is whole and an int; what is not is no such line.
TEST(WildLogs, CountsAreWholeAndSmall) {
  EXPECT_EQ(count_after("Rank 12 on", "Rank "), 12);
  EXPECT_EQ(count_after("Rank 1000000000", "Rank "), 1'000'000'000);
  for (const char* line : {"Rank 5e9", "Rank 1e300", "Rank 0.5", "Rank -1", "Rank x", "rank 3"})
    EXPECT_EQ(count_after(line, "Rank "), std::nullopt) << line;
}

// Megatron-LM prints its arguments on the first rank and its steps on the last.
TEST(WildLogs, ArgumentsOfTheFirstRankAndStepsOfTheLast) {
  const auto check = [](const std::string& text, const char* what) {
    const RunLog log = parse_run_log(text, "x.log");
    EXPECT_EQ(log.steps.size(), 4u) << what;
    EXPECT_EQ(log.says.at("tp"), 2) << what;
    EXPECT_EQ(log.says.at("hidden"), 5120) << what;
  };
  std::string of_srun = text_of(kArguments, " 0: ");
  for (int rank = 1; rank < 16; ++rank)
    of_srun += fmt::format("{:2}: > initialized tensor model parallel\n", rank);
  check(of_srun + text_of(kSteps, "15: "), "srun -l");
  check(text_of(kArguments, "[1,0]<stdout>:") + text_of(kSteps, "[1,15]<stdout>:"), "mpirun --tag-output");
  check(text_of(kArguments, "[default0]:") + text_of(kSteps, "[default7]:"), "torchrun");
  check(text_of(kArguments, "0: [default0]:") + text_of(kSteps, "1: [default7]:"), "srun -l torchrun");
  // Steps of ranks beside the one that counts are left out.
  Lines many;
  for (const std::string& line : kSteps)
    for (const char* tag : {"[default6]:", "[default7]:"}) many.push_back(tag + line);
  check(text_of(kArguments, "[default0]:") + text_of(many), "two ranks with steps");
}

TEST(WildLogs, CollectorsOfLogsDoNotMatter) {
  const Lines all = [] {
    Lines lines = kArguments;
    lines.insert(lines.end(), kSteps.begin(), kSteps.end());
    return lines;
  }();
  std::string docker;
  for (const std::string& line : all)
    docker += nlohmann::json{{"log", line + "\n"}, {"stream", "stdout"}, {"time", "2024-02-03T12:00:00.1Z"}}
                  .dump() +
              "\n";
  // As Docker writes the keys, "log" first.
  for (const std::string& text :
       {docker, text_of(all, "[pod/llm-worker-0/pytorch] "), text_of(all, "trainer-1  | "),
        text_of(all, "Nov 27 09:28:29 node1 python[1234]: "),
        text_of(all, "2024-02-03T12:00:00.123456789Z stdout F "), text_of(all, "worker-0: "),
        text_of(all, "2024-02-03 12:00:00.123 | INFO     | megatron.training:print_rank_0:123 - "),
        text_of(all, "\x1b[36m(RayTrainWorker pid=99, ip=10.0.0.1)\x1b[0m "), text_of(all, "", "\r\n"),
        text_of(kArguments) + text_of(kSteps, "", "\r")}) {
    const RunLog log = parse_run_log(text, "x.log");
    EXPECT_EQ(log.steps.size(), 4u) << text.substr(0, 60);
    EXPECT_DOUBLE_EQ(log.steps.back().value, 16.03);
    EXPECT_EQ(log.says.at("tp"), 2) << text.substr(0, 60);
  }
  // A line that no collector wrote stays as it is.
  EXPECT_EQ(without_launcher_tags("{\"log\": 3}\nx\n"), "{\"log\": 3}\nx\n");
}

// What was started again in one file warms up again; ranks without tags print each step as often as there are ranks.
// Two writers between each other, whoever collected them: one run of four steps, not of eight.
TEST(WildLogs, SeveralPodsHostsAndServicesAreSeveralRanks) {
  const std::vector<std::array<std::string, 2>> prefixes = {
      {"[pod/trainer-0/pytorch] ", "[pod/trainer-10/pytorch] "},
      {"trainer-0  | ", "trainer-10 | "},
      {"(RayTrainWorker pid=100) ", "(RayTrainWorker pid=200, ip=10.0.0.2) "},
      {"Feb 03 04:05:06 node-1 python[77]: ", "Feb 03 04:05:07 node-2 python[88]: "},
      {"node1: ", "node2: "},
      {"2026-02-03T04:05:06.123456789Z [rank0]:", "2026-02-03T04:05:06.223456789Z [rank8]:"},
      {"2026-02-03T04:05:06+01:00 [pod/a-0/x] [rank0]: ", "2026-02-03T04:05:06+01:00 [pod/a-1/x] [rank8]: "}};
  for (const auto& [first, second] : prefixes) {
    std::string text = text_of(kArguments, first) + text_of(kArguments, second);
    for (std::size_t i = 0; i < kSteps.size(); ++i)
      text += first + kSteps[i] + "\n" + second + kSteps[i] + "\n";
    const RunLog log = parse_run_log(text, "x.log");
    EXPECT_EQ(log.steps.size(), 4u) << first;
    EXPECT_EQ(log.says.at("tp"), 2) << first;
  }
  // Sections of a configuration begin their lines, behind whatever stood there before.
  const RunLog nemo = parse_run_log(
      "2026-02-03T04:05:06.1Z model:\n2026-02-03T04:05:06.1Z   tensor_model_parallel_size: 4\n"
      "2026-02-03T04:05:06.1Z   name: distributed_fused_adam\n2026-02-03T04:05:06.1Z trainer:\n"
      "2026-02-03T04:05:06.1Z   devices: 8\n2026-02-03T04:05:06.1Z   num_nodes: 2\n2026-02-03T04:05:06.1Z   "
      "precision: bf16\n"
      "2026-02-03T04:05:16.1Z Training epoch 0, iteration 1/9 | global_step: 1 | train_step_timing in s: "
      "6.1\n"
      "2026-02-03T04:05:26.1Z Training epoch 0, iteration 2/9 | global_step: 2 | train_step_timing in s: "
      "6.0\n",
      "x.log");
  EXPECT_EQ(nemo.says.at("tp"), 4);
  EXPECT_EQ(nemo.says.at("zero_stage"), 1);
  EXPECT_EQ(nemo.says.at("gpus"), 16);
  EXPECT_EQ(nemo.compute, Dtype::bf16);
  // Nothing is taken off that is the program's.
  const std::string plain = text_of(kArguments) + text_of(kSteps);
  EXPECT_EQ(without_collector_tags(plain), plain);
  EXPECT_EQ(without_collector_tags("node1: x\nplain\nplain\n"), "node1: x\nplain\nplain\n");
}

// PowerShell writes UTF-16, Windows' editors a mark of order and two characters to end a line.
TEST(WildLogs, FilesOfWindows) {
  const std::string plain = text_of(kArguments, "", "\r\n") + text_of(kSteps, "", "\r\n");
  std::string low = "\xff\xfe", high = "\xfe\xff";
  for (const char c : plain) {
    low += c;
    low += '\0';
    high += '\0';
    high += c;
  }
  for (const std::string& text : {plain, "\xef\xbb\xbf" + plain, low, high}) {
    const RunLog log = parse_run_log(text, "x.log");
    EXPECT_EQ(log.steps.size(), 4u);
    EXPECT_EQ(log.says.at("tp"), 2);
  }
  EXPECT_EQ(in_utf8(std::string("\xff\xfe\x3d\xd8\x00\xde\xe4\x00", 8)), "\xf0\x9f\x98\x80\xc3\xa4");
  EXPECT_THROW(parse_run_log(low.substr(0, 60), "x.log"), ConfigError);
}

TEST(WildLogs, RestartsAndRanksWithoutTags) {
  const std::string twice = text_of(kArguments) + text_of(kSteps) + "RuntimeError: NCCL error\n" +
                            text_of(kArguments) + step(3, 70000) + "\n" + step(4, 16050) + "\n" +
                            step(5, 16060) + "\n";
  const RunLog log = parse_run_log(twice, "x.log");
  ASSERT_EQ(log.steps.size(), 7u);
  for (std::size_t i = 0; i < log.steps.size(); ++i) EXPECT_EQ(log.steps[i].warms_up, i == 0 || i == 4) << i;
  // The same interleaved behind srun -l.
  Lines lines;
  for (std::size_t from = 0; from < twice.size();) {
    const std::size_t end = twice.find('\n', from);
    for (const char* tag : {" 1: ", " 0: "}) lines.push_back(tag + twice.substr(from, end - from));
    from = end + 1;
  }
  const RunLog tagged = parse_run_log(text_of(lines), "x.log");
  ASSERT_EQ(tagged.steps.size(), 7u);
  EXPECT_TRUE(tagged.steps[4].warms_up);
  std::string titan;
  for (const int n : {1, 10, 20})
    for (int rank = 0; rank < 8; ++rank)
      titan += fmt::format(
          "[titan] 2026-02-24 19:46:17,508 - root - INFO - step: {:2}  loss:  7.6  memory: 66.91GiB(37.5%)  "
          "tps: {}\n",
          n, n == 1 ? 100 : 10000 + n);
  const RunLog ranks = parse_run_log(titan, "x.log");
  TrainingSpec training;
  training.seq_len = 1000;
  training.global_batch = 8;
  ParallelPlan plan;
  plan.dp = 8;
  EXPECT_NEAR(steady_step(ranks, training, plan).v, 0.1,
              0.001);  // not of the first step, which all eight print
}

TEST(WildLogs, NeMoPrintsLinesOrABar) {
  std::string lines, bar;
  for (int n = 0; n < 8; ++n) {
    const double s = n == 0 ? 60 : 16.0 + 0.01 * n;
    lines += fmt::format(
        "[2025-10-17T11:32:59+08:00] Training epoch 0, iteration {0}/99 | lr: 6.9e-06 | global_batch_size: "
        "128 | global_step: {0} | "
        "max_memory_reserved: 67785762816 | reduced_train_loss: 11.96 | train_step_timing in s: {1} | "
        "consumed_samples: {2}\n",
        n, s, 128 * (n + 1));
    bar += fmt::format(
        "\rEpoch 0: :  {0}%|#  | {0}/15 [06:19<07:13, reduced_train_loss=11.50, global_step={0}.000, "
        "consumed_samples=12.0, "
        "train_step_timing in s={1}]",
        n, s);
  }
  for (const std::string& text : {lines, bar + "\n"}) {
    const RunLog log = parse_run_log(text, "x.log");
    EXPECT_EQ(log.format, LogFormat::nemo);
    ASSERT_EQ(log.steps.size(), 8u);
    EXPECT_TRUE(log.steps[0].warms_up);
    EXPECT_DOUBLE_EQ(log.steps[7].value, 16.07);
  }
  const RunLog log = parse_run_log(lines, "x.log");
  EXPECT_EQ(log.says.at("global_batch"), 128);
  EXPECT_NEAR(log.peak_memory_GiB.value_or(0), 63.13, 0.01);
  EXPECT_THROW(
      parse_run_log("Epoch 0: 1%| | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, global_step=794.0]\n",
                    "x.log"),
      ConfigError);
}

// epfLLM/Megatron-LLM#11 and #22: steps that grow from 86 to 130 s.
TEST(WildLogs, StepsThatGrowAreNotSteady) {
  Lines steady, growing;
  for (int n = 1; n <= 30; ++n) {
    steady.push_back(step(n, 16000 + n));
    growing.push_back(step(n, 86000 + 1500 * n));
  }
  EXPECT_LT(spread_of_steps(parse_run_log(text_of(steady), "x.log")).value_or(1), 0.01);
  EXPECT_GT(spread_of_steps(parse_run_log(text_of(growing), "x.log")).value_or(0), 0.2);
  EXPECT_FALSE(spread_of_steps(parse_run_log(text_of(kSteps), "x.log")).has_value());  // too few to say
}

std::string rank_line(int rank, const std::string& host,
                      const std::string& device = "NVIDIA A100-SXM4-80GB") {
  return fmt::format("#  Rank {:2} Group  0 Pid   {} on {} device  {} [0x1{}] {}", rank, 1000 + rank, host,
                     rank % 8, rank % 8, device);
}
Lines ranks_of(int ranks, int per_node) {
  Lines out = {"# nThread 1 nGpus 1 minBytes 67108864 maxBytes 1073741824 step: 2(factor)",
               "# Using devices"};
  for (int r = 0; r < ranks; ++r) out.push_back(rank_line(r, fmt::format("node{}", r / per_node)));
  return out;
}
const Lines kRows = {
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   "
    "busbw #wrong",
    "    67108864      16777216     float     sum      -1    587.0  114.33  200.07      0    580.0  114.33  "
    "200.07      0",
    "   268435456      67108864     float     sum      -1   2094.0  128.19  224.34      0   2090.0  128.19  "
    "224.34      0"};

TEST(WildTables, RowsAreFoundBehindAnything) {
  Lines all = ranks_of(8, 8);
  all.insert(all.end(), kRows.begin(), kRows.end());
  for (const char* before :
       {"", "[pod/x/y] ", "nccl-1  | ", "Nov 27 09:28:29 node1 all_reduce_perf[77]: ",
        "2024-02-03T12:00:00.123Z stdout F ", "node-a: ", "2024-02-03 12:00:00,123 INFO ", "[0] "}) {
    const NcclTable table = parse_nccl_table(text_of(all, before), "t.txt");
    EXPECT_EQ(table.ranks, 8) << before;
    ASSERT_EQ(table.samples.size(), 2u) << before;
    EXPECT_DOUBLE_EQ(table.samples[1].time_s, 2094e-6);
    EXPECT_EQ(table.kind, CollectiveKind::all_reduce) << before;
  }
  // Docker's json-file driver writes an object a line; one that is cut is the other form's, -J.
  std::string docker;
  for (const std::string& line : all)
    docker += R"({"log":")" + line + R"(\n","stream":"stdout","time":"2024-02-03T12:00:00.1Z"})" + "\n";
  EXPECT_EQ(parse_nccl_table(docker, "t.txt").samples.size(), 2u);
  EXPECT_THROW(parse_nccl_table(docker.substr(0, 40), "t.txt"), ConfigError);
}

// mpirun tags each part of a line that is written by itself.
TEST(WildTables, TagsInsideLines) {
  for (const std::string tag : {"[1,0]<stdout>:", "[0]"}) {
    std::string text = text_of(ranks_of(8, 8), tag);
    text += tag + "   268435456      67108864     float     sum      -1" + tag +
            "   2094.0  128.19  224.34      0" + tag + "   2090.0  128.19  224.34      0\n";
    const NcclTable table = parse_nccl_table(text, "t.txt");
    ASSERT_EQ(table.samples.size(), 1u) << tag;
    EXPECT_DOUBLE_EQ(table.samples[0].time_s, 2094e-6) << tag;
    EXPECT_EQ(table.device, "NVIDIA A100-SXM4-80GB");
  }
}

std::string refusal_of(const Lines& lines) {
  try {
    parse_nccl_table(text_of(lines), "t.txt");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(WildTables, SeveralTablesAndJobsAndCutListsAreNamed) {
  Lines two = ranks_of(8, 8);
  two.insert(two.end(), kRows.begin(), kRows.end());
  const Lines one = two;
  EXPECT_EQ(refusal_of(one), "");
  two.insert(two.end(), one.begin(), one.end());
  EXPECT_NE(refusal_of(two).find("a second table"), std::string::npos) << refusal_of(two);
  Lines apart = {rank_line(0, "node-a"), rank_line(0, "node-b")};
  apart.insert(apart.end(), kRows.begin(), kRows.end());
  EXPECT_NE(refusal_of(apart).find("MPI=1"), std::string::npos) << refusal_of(apart);
  Lines cut = {rank_line(6, "node-a"), rank_line(7, "node-a")};
  cut.insert(cut.end(), kRows.begin(), kRows.end());
  EXPECT_NE(refusal_of(cut).find("2 of 8 ranks"), std::string::npos) << refusal_of(cut);
}

// NVIDIA/nccl#527: rows copied out of several outputs into one table; the last line of an output alone.
TEST(WildTables, ATableWithoutItsRanksSaysWhereTheyStand) {
  EXPECT_NE(
      refusal_of(
          {"p4dn        size         count      type   redop     time   algbw   busbw  error     time   "
           "algbw   busbw  error",
           "   1   1073741824     268435456     float     sum   8142.6  131.87  230.77  2e-07   8141.2  "
           "131.89  230.81  2e-07"})
          .find("give the whole output"),
      std::string::npos);
  EXPECT_NE(refusal_of({"# Avg bus bandwidth    : 180.123"}).find("rows of sizes"), std::string::npos);
}

TEST(WildTables, WhatNcclSaysOfItsMachine) {
  const PrintedMachine ib = printed_machine(
      "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)\n"
      "NVIDIA Release 24.07 (build 1)\n"
      "h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB [RO]; OOB "
      "ibp25s0:10.20.0.120<0>\n"
      "h:1:2 [0] NCCL INFO Using network IBext\n"
      "h:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
      "h:1:2 [0] NCCL INFO comm 0x2 rank 0 nRanks 24 nNodes 3 localRanks 8 localRank 0 MNNVL 0\n");
  EXPECT_EQ(ib.devices, std::vector<std::string>{"NVIDIA H100 80GB HBM3"});
  EXPECT_EQ(ib.network, "infiniband");
  EXPECT_EQ(ib.nics, 2);
  EXPECT_EQ(ib.gpus_per_node, 8);
  EXPECT_EQ(ib.of_ranks, 24);
  EXPECT_EQ(printed_machine("x NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE ; OOB eth0:1<0>\n").network, "roce");
  EXPECT_EQ(printed_machine("x NCCL INFO NET/Socket : Using [0]eth0:1<0>\nx NCCL INFO Using network Socket\n")
                .network,
            "ethernet");
  EXPECT_EQ(printed_machine("x NCCL INFO Using network AWS Libfabric\n").network, "efa");
  const PrintedMachine silent =
      printed_machine("NVIDIA H100 nodes are recommended for this configuration, says the guide\n");
  EXPECT_TRUE(silent.devices.empty());
  EXPECT_EQ(silent.network, "");
}

}  // namespace
}  // namespace sextant
