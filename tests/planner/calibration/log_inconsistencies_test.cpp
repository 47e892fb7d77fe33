// What a log says against what its user says with it: an inconsistency is refused with its line, an agreement used, and what a key leaves
// out is the log's.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/said.hpp"

namespace sextant {
namespace {

constexpr const char* kAsTheLog = "tp2.pp2.vp2.cp1.dp16.z1.mbs1.sel";

std::string with(const char* argument) { return with_arguments(std::string(argument) + "\n"); }

TEST(LogInconsistencies, EachPartOfALayoutWithItsLine) {
  EXPECT_EQ(said(kMegatron, kAsTheLog).problems, "");
  EXPECT_EQ(plan_key(said(kMegatron, kAsTheLog).plan), kAsTheLog);
  for (const auto& [key, problem] :
       {std::pair{"tp4.pp2.vp2.dp8.z1.mbs1.sel", "x.log:1: tp: found 2, expected 4"},
        {"tp2.pp4.vp2.dp8.z1.mbs1.sel", "x.log:13: pp: found 2, expected 4"},
        {"tp2.pp2.vp1.dp16.z1.mbs1.sel", "x.log:12: layers_per_chunk: found 2 chunks a stage, expected vp 1"},
        {"tp2.pp2.vp2.dp8.z1.mbs1.sel", "x.log:1: dp: found 16, expected 8"},
        {"tp2.pp2.vp2.dp16.z0.mbs1.sel", "x.log:18: zero_stage: found 1, expected 0"},
        {"tp2.pp2.vp2.dp16.z3.mbs1.sel", "x.log:18: zero_stage: found 1, expected 3"},
        {"tp2.pp2.vp2.dp16.z1.mbs2.sel", "x.log:9: micro_batch: found 1, expected 2"},
        {"tp2.pp2.vp2.dp16.z1.mbs1.sel.nosp", "x.log:16: sequence_parallel: found on, expected off"},
        {"tp2.pp2.vp2.dp16.z1.mbs1", "x.log:14: recompute: found selective, expected none"}}) {
    const Said s = said(kMegatron, key);
    EXPECT_NE(s.problems.find(problem), std::string::npos) << key << ": " << s.problems;
  }
  const Said off = said(with("  optimizer_cpu_offload ........................... True"), kAsTheLog);
  EXPECT_NE(off.problems.find("optimizer_offload: found on"), std::string::npos) << off.problems;
  EXPECT_EQ(said(with("  optimizer_cpu_offload ........................... True"),
                 std::string(kAsTheLog) + ".oo100")
                .problems,
            "");
}

// Their number would not fit its type.
TEST(LogInconsistencies, MoreRanksThanThereCanBeAreRefused) {
  std::string log = kMegatron;
  for (const std::string degree :
       {"tensor-model-parallel size: ", "tensor_model_parallel_size ...................... "}) {
    const auto at = log.find(degree);
    ASSERT_NE(at, std::string::npos);
    log.replace(at + degree.size(), 1, "603251272");
  }
  const std::string problems = said(log, "dp16", {}, {}, std::vector<std::string>{"dp"}).problems;
  EXPECT_NE(problems.find("tp * cp * pp * dp: found tp 603251272"), std::string::npos) << problems;
  EXPECT_NE(problems.find("at most 16777216 ranks"), std::string::npos) << problems;
}

TEST(LogInconsistencies, WhatAKeyLeavesOutIsTheLogs) {
  const Said s = said(kMegatron, "tp2.sel", {.gpus = 128}, {}, std::vector<std::string>{"tp", "recompute"});
  EXPECT_EQ(s.problems, "");
  EXPECT_EQ(plan_key(s.plan), kAsTheLog);
  EXPECT_NE(
      said(kMegatron, "tp4.sel", {.gpus = 128}, {}, std::vector<std::string>{"tp", "recompute"}).problems,
      "");
}

TEST(LogInconsistencies, BatchSequenceAndFormats) {
  TrainingSpec stated;
  stated.seq_len = 2048;
  stated.global_batch = 1024;
  stated.compute = Dtype::bf16;
  EXPECT_NE(said(kMegatron, kAsTheLog, {.seq_len = true}, stated)
                .problems.find("x.log:15: seq_len: found 4096, expected 2048"),
            std::string::npos);
  EXPECT_EQ(said(kMegatron, kAsTheLog, {.global_batch = true}, stated).problems, "");
  stated.global_batch = 512;
  EXPECT_NE(said(kMegatron, kAsTheLog, {.global_batch = true}, stated)
                .problems.find("global_batch: found 1024, expected 512"),
            std::string::npos);
  // As an argument, as the format of parameters, and in the first lines.
  for (const char* fp16 : {"  fp16 ............................................ True",
                           "  params_dtype ................................... torch.float16",
                           "using torch.float16 for parameters ..."}) {
    const Said s = said(with(fp16), kAsTheLog, {.compute = true}, stated);
    EXPECT_NE(s.problems.find("compute: found fp16, expected bf16"), std::string::npos) << fp16 << s.problems;
    EXPECT_EQ(said(with(fp16), kAsTheLog).training.compute, Dtype::fp16) << fp16;
  }
  EXPECT_EQ(said(with("  bf16 ............................................ True"), kAsTheLog,
                 {.compute = true}, stated)
                .problems,
            "");
}

// Before the arguments, and all that a log has of which the head was cut differently.
TEST(LogInconsistencies, TheFirstLineAlone) {
  const std::string steps = kMegatron + std::string(kMegatron).find("[rank0]");
  for (const char* first : {"using world size: 64, data-parallel size: 8, context-parallel size: 1, "
                            "tensor-model-parallel size: 4, "
                            "pipeline-model-parallel size: 2\n",
                            "using world size: 64, data-parallel-size: 8, tensor-model-parallel size: 4, "
                            "pipeline-model-parallel size: 2 \n"}) {
    const Said s = said(first + steps, kAsTheLog);
    for (const char* problem : {"x.log:1: tp: found 4, expected 2", "x.log:1: dp: found 8, expected 16"})
      EXPECT_NE(s.problems.find(problem), std::string::npos) << s.problems;
    EXPECT_EQ(said(first + steps, "tp4.pp2.dp8.z1.mbs1").problems, "");
  }
  const std::string fewer = "using world size: 32, data-parallel size: 8\n" + steps;
  EXPECT_NE(said(fewer, "tp4.pp2.dp8.z1.mbs1").problems.find("x.log:1: gpus: found 32, expected 64"),
            std::string::npos);
}

// Megatron-LM's FSDP is no ZeRO 1, whatever it says of its optimizer.
TEST(LogInconsistencies, WhoShards) {
  const std::string fsdp = with(
      "  data_parallel_sharding_strategy ................. optim_grads_params\n"
      "  use_megatron_fsdp ............................... True");
  EXPECT_EQ(said(fsdp, "tp2.pp2.vp2.cp1.dp16.z3.mbs1.sel").problems, "");
  EXPECT_NE(said(fsdp, kAsTheLog).problems.find("zero_stage: found 3, expected 1"), std::string::npos);
  // torchtitan does not print whether it gathers twice.
  const std::string titan =
      "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1\n"
      "step: 1 loss: 1 memory: 1.00GiB(1%) tps: 10\n";
  for (const char* key : {"dp8.z3.mbs1", "dp8.z2.mbs1"}) EXPECT_EQ(said(titan, key).problems, "") << key;
  EXPECT_NE(said(titan, "dp8.z0.mbs1").problems, "");
  EXPECT_NE(said(titan, "dp8.z3.mbs1.sd4").problems.find("shard_degree: found 8, expected 4"),
            std::string::npos)
      << said(titan, "dp8.z3.mbs1.sd4").problems;
}

}  // namespace
}  // namespace sextant
