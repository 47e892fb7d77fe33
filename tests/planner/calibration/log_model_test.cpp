// The shape that a log states against the model that is named, its formats, and files that are packed. Megatron-LM's keys and rules as in
// NVIDIA/Megatron-LM d98e8a6, arguments.py and vocab_utils.py; torchtitan's lines as in b5bcd76 and 9810191bb^, quantization/.
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/calibration/run_log.hpp"
#include "tests/planner/calibration/said.hpp"

namespace sextant {
namespace {

ModelSpec llama_70b() {
  ModelSpec m = llama_13b();
  m.name = "llama-3.1-70b";
  m.n_kv_heads = 8;
  m.vocab_size = 128256;
  return m;
}

std::string problems(const std::string& arguments, const ModelSpec& model = llama_70b()) {
  return filled(with_arguments(arguments), model).problems;
}

TEST(LogModel, GroupedQueries) {
  const std::string on = argument("group_query_attention", "True"),
                    off = argument("group_query_attention", "False");
  EXPECT_EQ(problems(on + argument("num_query_groups", "8")), "");
  EXPECT_NE(problems(on + argument("num_query_groups", "4")).find("kv_heads: found 4, expected 8 heads"),
            std::string::npos);
  // One group is printed where there are none.
  EXPECT_NE(problems(off + argument("num_query_groups", "1")).find("found no grouped queries"),
            std::string::npos);
  EXPECT_EQ(problems(off + argument("num_query_groups", "1"), llama_13b()), "");
  EXPECT_NE(
      filled("num_key_value_heads: 4\ntp: 2 | pp: 1 | dp: 1\niteration: 2 / 9 | time_per_iteration_ms: 4.7K\n"
             "iteration: 3 / 9 | time_per_iteration_ms: 4.7K\n",
             llama_70b())
          .problems.find("kv_heads: found 4"),
      std::string::npos);
}

TEST(LogModel, HeadsAndMlp) {
  EXPECT_EQ(problems(argument("kv_channels", "128") + argument("swiglu", "True")), "");
  EXPECT_NE(problems(argument("kv_channels", "64")).find("head_dim: found 64, expected 128 a head"),
            std::string::npos);
  EXPECT_NE(problems(argument("swiglu", "False")).find("gated_mlp: found off, expected a gated MLP"),
            std::string::npos);
  EXPECT_EQ(problems(argument("kv_channels", "None")), "");
}

TEST(LogModel, Vocabularies) {
  const auto padded = [](int plain, int dummies) {
    return fmt::format(" > padded vocab (size: {}) with {} dummy tokens (new size: {})\n", plain, dummies,
                       plain + dummies);
  };
  EXPECT_EQ(problems(padded(128256, 0)), "");
  EXPECT_EQ(problems(argument("padded_vocab_size", "128512")), "");  // to 512
  EXPECT_EQ(problems(argument("vocab_size", "128000")), "");         // without the tokenizer's own
  EXPECT_NE(problems(padded(50257, 175)).find("plain_vocab: found a vocabulary of 50257, expected 128256"),
            std::string::npos);
  EXPECT_NE(
      problems(argument("padded_vocab_size", "32000")).find("vocab: found a padded vocabulary of 32000"),
      std::string::npos);
  // To a multiple of 16,384 on two ranks.
  EXPECT_EQ(
      problems(argument("make_vocab_size_divisible_by", "8192") + argument("padded_vocab_size", "131072")),
      "");
  EXPECT_NE(problems(argument("padded_vocab_size", "131072")), "");
  EXPECT_EQ(problems(argument("vocab_size", "None")), "");
}

TEST(LogModel, FormsOfOneShapeAreTheLogs) {
  const auto log = [](const char* untied) {
    return filled(with_arguments(argument("untie_embeddings_and_output_weights", untied)), llama_70b());
  };
  EXPECT_TRUE(log("False").model.tied_embeddings);
  EXPECT_TRUE(log("False").notes_that("shares the embedding"));
  EXPECT_FALSE(log("True").model.tied_embeddings);
  EXPECT_FALSE(log("True").notes_that("embedding"));
  EXPECT_TRUE(
      filled(with_arguments(argument("add_bias_linear", "True")), llama_70b()).notes_that("have biases"));
  EXPECT_FALSE(
      filled(with_arguments(argument("add_bias_linear", "False")), llama_70b()).notes_that("biases"));
}

// Sums of gradients follow the parameters unless they are in fp32.
TEST(LogFormats, GradientsOfMegatron) {
  const auto training = [](const std::string& arguments) {
    return filled(with_arguments(arguments)).training;
  };
  const std::string in_fp32 = argument("accumulate_allreduce_grads_in_fp32", "True"),
                    in_16 = argument("accumulate_allreduce_grads_in_fp32", "False"),
                    bf16 = argument("bf16", "True") + argument("fp16", "False"),
                    fp16 = argument("bf16", "False") + argument("fp16", "True");
  EXPECT_EQ(training(in_16 + fp16).gradient, Dtype::fp16);
  EXPECT_EQ(training(in_16 + fp16).reduction, Dtype::fp16);
  EXPECT_EQ(training(in_fp32 + fp16).gradient, Dtype::fp32);
  EXPECT_EQ(training(in_16 + bf16 + argument("grad_reduce_in_bf16", "True")).gradient, Dtype::bf16);
  EXPECT_EQ(training(in_fp32 + bf16).gradient, Dtype::fp32);
  EXPECT_EQ(training(in_16 + bf16).gradient, Dtype::fp32);  // what is printed before it is set
  TrainingSpec stated;
  stated.gradient = Dtype::fp32;
  EXPECT_TRUE(said(with_arguments(in_16 + fp16), "tp2.pp2.vp2.dp16.z1.mbs1.sel", {.gradient = true}, stated)
                  .names("gradient: found fp16, expected fp32"));
}

// ddp stands before mixed_precision.
TEST(LogFormats, GradientsOfMegatronBridge) {
  const auto training = [](const char* in_fp32, const char* format) {
    return filled(fmt::format(
                      "ddp:\n  grad_reduce_in_fp32: {}\nmixed_precision:\n  {}: true\nmodel:\n  "
                      "tensor_model_parallel_size: 1\nStep Time : 5.0s GPU utilization: 1MODEL_TFLOP/s/GPU\n"
                      " iteration 1/ 9 | elapsed time per iteration (ms): 5000.0 |\n"
                      " iteration 2/ 9 | elapsed time per iteration (ms): 5000.0 |\n",
                      in_fp32, format))
        .training;
  };
  EXPECT_EQ(training("false", "fp16").gradient, Dtype::fp16);
  EXPECT_EQ(training("false", "bf16").gradient, Dtype::bf16);
  EXPECT_EQ(training("true", "fp16").gradient, Dtype::fp32);
  EXPECT_EQ(training("true", "bf16").reduction, Dtype::fp32);
}

TEST(LogFormats, WhatRunsInFp8) {
  const auto training = [](const std::string& line) {
    return filled(line +
                  "\nBuilding device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1\n"
                  "step: 1 loss: 1 memory: 1.00GiB(1%) tps: 10\n");
  };
  for (const char* dense :
       {"Float8 training active with recipe rowwise", "Float8 tensorwise scaled training active",
        "Swapped to Float8Linear layers with enable_fsdp_float8_all_gather=True",
        "Swapped to Float8Linear layers", "MX training active with recipe mxfp8_cublas",
        "Converted Linear layers to MXFP8Linear"})
    EXPECT_EQ(training(dense).training.compute, Dtype::fp8) << dense;
  for (const char* other :
       {"Failed to swap to Float8Linear with recipe lookup because the torchao version is too old",
        "Converted GroupedExperts to use dynamic float8 rowwise quantization with scaled grouped GEMMs",
        "Converted MoE layers matching FQNS ['experts'] to use dynamic float8 rowwise quantization",
        "MXFP8 MoE training enabled",
        "Using _auto_filter_for_recipe to avoid converting linear layers with dims too small to benefit from "
        "float8 training."})
    EXPECT_EQ(training(other).training.compute, Dtype::bf16) << other;
  EXPECT_TRUE(training("Converted Linear layers to NVFP4Linear").names("compute: found GEMMs in 4 bits"));
  EXPECT_TRUE(training("MX training active with recipe mxfp4_cutlass").names("4 bits"));
}

}  // namespace
}  // namespace sextant
