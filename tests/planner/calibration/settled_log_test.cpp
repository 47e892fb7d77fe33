// What the numbers of a log settle by arithmetic: batch, sequence length, GPUs and stages. The texts are made up; their form is that of
// NVIDIA/Megatron-LM d98e8a6 and deepspeedai/Megatron-DeepSpeed (training_log), huggingface/nanotron (train_step_logs, before and after
// March 2025).
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/calibration/log_settled.hpp"
#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/said.hpp"

namespace sextant {
namespace {

// Two replicas of 2 stages and 2 tensor ranks; the numbers of a step as nanotron shortens them.
std::string nanotron_steps(const char* stage, const char* tokens, const char* of_gpu,
                           const char* batch = "64",
                           const char* ms = "elapsed_time_per_iteration_ms: 11.5K") {
  std::string text;
  for (int n = 1; n <= 4; ++n)
    text += fmt::format(
        "10/17/2025 16:31:56 [INFO|DP=0|PP={}|TP=0|node-1]: iteration: {} / 378950 | consumed_tokens: 85.8G "
        "| {} | "
        "tokens_per_sec: {} | tokens_per_sec_per_gpu: {} | global_batch_size: {} | lm_loss: 2.38 | lr: "
        "1e-05\n",
        stage, n, ms, tokens, of_gpu, batch);
  return text;
}

TEST(SettledLog, NanotronsRatesAreGpusAndSequences) {
  const RunLog log = parse_run_log(nanotron_steps("1", "22.8K", "2.85K"), "x.log");
  EXPECT_EQ(log.says.at("gpus"), 8);
  EXPECT_EQ(log.says.at("pp"), 2);
  TrainingSpec stated;
  stated.seq_len = 4096;
  stated.global_batch = 64;
  const std::string key = "tp2.pp2.dp2.z1.mbs1.nosp";
  EXPECT_EQ(said(nanotron_steps("1", "22.8K", "2.85K"), key, {.seq_len = true}, stated).problems, "");
  // Twice the GPUs, half the sequence, other stages.
  EXPECT_TRUE(said(nanotron_steps("1", "22.8K", "1.43K"), key, {.seq_len = true}, stated)
                  .names("x.log:1: gpus: found 16"));
  stated.seq_len = 8192;
  EXPECT_TRUE(
      said(nanotron_steps("1", "22.8K", "2.85K"), key, {.seq_len = true}, stated).names("seq_len: found 40"));
  stated.seq_len = 4096;
  EXPECT_TRUE(said(nanotron_steps("3", "22.8K", "2.85K"), key, {.seq_len = true}, stated)
                  .names("pp: found 4, expected 2"));
  EXPECT_TRUE(said(nanotron_steps("0", "22.8K", "2.85K"), key, {.seq_len = true}, stated)
                  .names("pp: found 1, expected 2"));
}

TEST(SettledLog, NanotronsSequenceIsFilled) {
  const Said s = filled("[INFO|DP=0|PP=0|TP=0]: ParallelismArgs(dp=2, pp=1, tp=1, tp_mode=x)\n" +
                        nanotron_steps("0", "22.8K", "11.4K"));
  EXPECT_EQ(s.problems, "");
  EXPECT_EQ(s.training.seq_len, 4096);
  EXPECT_TRUE(s.notes_that("sequence length 4096"));
  EXPECT_EQ(s.plan.dp, 2);
  // Nothing to settle it from in tokens.
  EXPECT_EQ(
      filled(nanotron_steps("0", "22.8K", "11.4K", "262K", "time_per_iteration_ms: 11.5K")).training.seq_len,
      TrainingSpec().seq_len);
}

// Many lines narrow what three digits leave open; few leave 1,024 GPUs as 1,013 to 1,035.
TEST(SettledLog, RoundingIsKept) {
  const RunLog log = parse_run_log(nanotron_steps("0", "1.02M", "1K"), "x.log");
  EXPECT_FALSE(log.says.contains("gpus"));
  EXPECT_LE(log.settled.at("gpus").low, 1016);
  EXPECT_GE(log.settled.at("gpus").high, 1024);
  ParallelPlan plan;
  plan.dp = 1024;
  EXPECT_TRUE(against_settled(log, {}, plan).empty() || against_settled(log, {}, plan).front().key != "gpus");
  plan.dp = 512;
  const auto problems = against_settled(log, {}, plan);
  EXPECT_TRUE(std::ranges::any_of(problems, [](const Problem& p) { return p.key == "gpus"; }));
}

// Without "global batch size" in its lines, as older versions and cut lines are.
std::string megatron(double samples_of_step, const char* more = "", int interval = 1) {
  std::string text =
      "using world size: 64, data-parallel size: 16, tensor-model-parallel size: 2, "
      "pipeline-model-parallel size: 2\n";
  for (int n = 1; n <= 4; ++n)
    text += fmt::format(
        " iteration {:8}/     100 | consumed samples: {:12.0f} |{} elapsed time per iteration (ms): "
        "30100.0 | learning rate: 3.0E-06 | lm loss: 1.02E+01 |\n",
        n * interval, samples_of_step * n * interval, more);
  return text;
}

TEST(SettledLog, ConsumedSamplesAreTheBatch) {
  EXPECT_EQ(filled(megatron(512)).training.global_batch, 512);
  EXPECT_EQ(filled(megatron(512, "", 10)).training.global_batch, 512);
  TrainingSpec stated;
  stated.global_batch = 1024;
  const Said s = said(megatron(512), "tp2.pp2.dp16.mbs1", {.global_batch = true}, stated);
  EXPECT_TRUE(s.names("global_batch: found 512, expected 1024")) << s.problems;
  stated.global_batch = 512;
  EXPECT_EQ(said(megatron(512), "tp2.pp2.dp16.mbs1", {.global_batch = true}, stated).problems, "");
  // A run that was started again counts on from where it was.
  EXPECT_EQ(filled(megatron(512) + megatron(512)).training.global_batch, 512);
  // NeMo, whose bar rounds.
  std::string nemo;
  for (int n = 1; n <= 4; ++n)
    nemo += fmt::format(
        "Training epoch 0, iteration {0}/99 | global_step: {0} | train_step_timing in s: 6.08 | "
        "consumed_samples: {1}\n",
        n, 256 * n);
  EXPECT_EQ(parse_run_log(nemo, "x.log").says.at("global_batch"), 256);
}

TEST(SettledLog, TokensOverSamplesOfMegatronDeepSpeed) {
  std::string text;
  for (int n = 1; n <= 4; ++n)
    text += fmt::format(
        " iteration {:8}/     100 | consumed samples: {:12} | consumed tokens: {:12} | elapsed time per "
        "iteration (ms): "
        "7757.6 | learning rate: 3.0E-06 | global batch size:   256 | lm loss: 1.0E+01 | actual seqlen:  "
        "2048 | samples "
        "per second: 33.000 | tokens per gpu per second (tgs): 1056.000 | TFLOPs: 90.1 |\n",
        n, 256 * n, 256 * 2048 * n);
  const RunLog log = parse_run_log(text, "x.log");
  EXPECT_EQ(log.says.at("seq_len"), 2048);
  EXPECT_EQ(log.says.at("gpus"), 64);  // 33 * 2048 / 1056
  TrainingSpec stated;
  stated.seq_len = 4096;
  stated.global_batch = 256;
  EXPECT_TRUE(said(text, "dp64.mbs1", {.seq_len = true}, stated).names("seq_len: found 2048, expected 4096"));
  stated.seq_len = 2048;
  EXPECT_EQ(said(text, "dp64.mbs1", {.seq_len = true}, stated).problems, "");
}

// bigscience's fork prints seconds.
TEST(SettledLog, SecondsOfBloom) {
  std::string text;
  for (int n = 1; n <= 4; ++n)
    text += fmt::format(
        " iteration {:8}/  115311 | consumed samples: {:12} | consumed tokens: {:12} | elapsed time per "
        "iteration (s): 104.{} | learning rate: 6.0E-05 | global batch size:  2048 | lm loss: 2.0E+00 |\n",
        n, 2048 * n, 2048 * 2048 * n, n == 1 ? 99 : 12);
  const RunLog log = parse_run_log(text, "x.log");
  EXPECT_EQ(log.format, LogFormat::megatron_lm);
  EXPECT_DOUBLE_EQ(log.steps.at(1).value, 104.12);
  EXPECT_EQ(log.says.at("seq_len"), 2048);
}

// A batch in tokens with three digits: 384 sequences of 4,096 are "1.57M", which is 383.3 of them.
TEST(SettledLog, TokensOfThreeDigitsAreSequences) {
  const auto text = [](const char* batch) {
    return fmt::format(
        "tp: 2 | pp: 1 | dp: 16 | cp: 1 | ep: 1\nseq_len: 4096 | mbs: 2 | train_steps: 100\n"
        "iteration: 2 / 9 | time_per_iteration_ms: 4.72K | global_batch_size: {} |\n"
        "iteration: 3 / 9 | time_per_iteration_ms: 4.72K | global_batch_size: {} |\n",
        batch, batch);
  };
  EXPECT_EQ(filled(text("1.57M")).training.global_batch, 384);
  const Said s = filled(text("1.5M"));
  EXPECT_TRUE(s.names("about 366 sequences of 4096 (1.5 million tokens)")) << s.problems;
  EXPECT_TRUE(s.names("a multiple of micro_batch * dp = 32")) << s.problems;
  const Said many = filled(text("157M"));
  EXPECT_TRUE(many.names("one multiple of micro_batch * dp = 32")) << many.problems;
  EXPECT_TRUE(many.names("state it, --global-batch")) << many.problems;
}

}  // namespace
}  // namespace sextant
