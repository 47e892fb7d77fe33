// What people call stacks, options, models and files that are no plan: the answer leads on. Neighbours of what they gave.
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/public_question.hpp"
#include "tools/inputs/plan_options.hpp"

namespace sextant {
namespace {

using public_question::kLlama7bOn8;

Called simulate(const Words& more) {
  return call(Words{"simulate", "--seq-len", "1024"} + more, kUnlimitedColumns);
}

TEST(PublicWords, TokensAsTheyAreWritten) {
  for (const auto& [typed, tokens] : {std::pair{"2T", 2e12},
                                      {"1.4t", 1.4e12},
                                      {"300b", 300e9},
                                      {"2e12", 2e12},
                                      {"2,000,000,000", 2e9},
                                      {"1,048,576", 1048576.0},
                                      {"1,200M", 1.2e9}})
    EXPECT_EQ(parse_tokens(typed, "--tokens"), tokens) << typed;
  for (const char* none : {"2,00", ",000", "1,000,00", "1.400,5T", "T", "", "2 T"})
    EXPECT_THROW(parse_tokens(none, "--tokens"), ConfigError) << none;
}

TEST(PublicWords, FrameworksWithoutAPresetOfTheirName) {
  for (const auto& [typed, meant] :
       {std::pair{"zero3", "did you mean deepspeed-zero?"},
        {"ZeRO-2", "did you mean deepspeed-zero?"},
        {"fsdp2", "did you mean torchtitan, or torchtitan-eager"},
        {"PyTorch", "torchtitan (FSDP2) or fsdp1-eager (FSDP1)"},
        {"mcore", "did you mean megatron-core?"},
        {"Megatron-LM", "megatron-lm-2024 or megatron-lm-2021 for those years"},
        {"accelerate", "deepspeed-zero for DeepSpeed, torchtitan-eager for FSDP2"},
        {"hf-trainer", "deepspeed-zero for DeepSpeed, torchtitan-eager for FSDP2"},
        {"axolotl", "deepspeed-zero for DeepSpeed, torchtitan-eager for FSDP2"},
        {"maxtext", "no framework on JAX"},
        {"nemo", "nemo-"},
        {"gemini", "colossal-gemini"}}) {
    const Called c = simulate(Words{"--plan", "dp8.z1.mbs1", "--stack", typed} + kLlama7bOn8);
    EXPECT_EQ(c.code, ExitCode::usage) << typed;
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
  EXPECT_EQ(simulate(Words{"--plan", "dp8.z3.mbs1", "--stack", "colossalai"} + kLlama7bOn8).code,
            ExitCode::no_feasible_plan);  // a name as it is, which has no stage 3
}

// A version in a name leads to the preset of that version, not to the one whose name comes nearest.
TEST(PublicWords, FrameworksWithAVersion) {
  for (const auto& [typed, meant] : {std::pair{"megatron-core-0.5", "megatron-lm-2024 is core 0.5 to 0.7"},
                                     {"core_v0.6.0", "megatron-lm-2024 is core 0.5 to 0.7"},
                                     {"mcore-0.12", "megatron-core is core 0."},
                                     {"megatron-lm-2023", "did you mean megatron-lm-2024?"},
                                     {"megatron-lm-2025", "did you mean megatron-core?"},
                                     {"megatron-lm-202", "did you mean megatron-lm-202"},
                                     {"nemo-2.0", "did you mean nemo-2024, or nemo-dgxc"},
                                     {"torchtitan-2024", "did you mean torchtitan? It is 20"},
                                     {"colossal-ai-0.4", "did you mean colossal-ai? It is 0."}}) {
    const Called c = simulate(Words{"--plan", "dp8.z1.mbs1", "--stack", typed} + kLlama7bOn8);
    EXPECT_EQ(c.code, ExitCode::usage) << typed;
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
  EXPECT_FALSE(
      says(simulate(Words{"--plan", "dp8.z1.mbs1", "--stack", "torchtitam"} + kLlama7bOn8), "It is"));
}

// Another product is no suggestion: a family that is not modelled says why, one that is read says how.
TEST(PublicWords, ModelsOfOtherFamilies) {
  for (const auto& [typed, meant] :
       {std::pair{"gemma-2-9b", "capped scores"},
        {"google/gemma-7b", "a GELU gate"},
        {"falcon-7b", "parallel attention and MLP"},
        {"gpt-neox-20b", "rotated in part"},
        {"opt-13b", "learned positions that begin at two"},
        {"gpt2-xl", "its config.json is read (model_type gpt2)"},
        {"codellama/CodeLlama-7b-hf", "its config.json is read (model_type llama)"},
        {"TinyLlama-1.1B", "its config.json is read (model_type llama)"},
        {"qwen2-7b", "its config.json is read (model_type qwen2)"},
        {"granite-3.1-8b", "state its sizes in a config.json of model_type llama"},
        {"optimus-7b", "Of about its size: "}}) {
    const Called c = simulate({"--model", typed, "--cluster", "1x8xh100", "--plan", "z3.mbs1"});
    EXPECT_EQ(c.code, ExitCode::usage) << typed;
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
    EXPECT_FALSE(says(c, "did you mean")) << typed << ": " << c.err;
  }
  for (const auto& [typed, meant] : {std::pair{"llama-3-8B-Instruct", "did you mean llama-3-8b?"},
                                     {"meta-llama/Meta-Llama-3-8B-Instruct", "did you mean llama-3-8b?"},
                                     {"llama-2-7b-chat-hf", "did you mean llama-2-7b?"},
                                     {"llama-2-34b", "did you mean llama-33b?"},
                                     {"qwen2.5-7b-instruct", "did you mean qwen2.5-7b?"}}) {
    const Called c = simulate({"--model", typed, "--cluster", "1x8xh100", "--plan", "z3.mbs1"});
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
}

TEST(PublicWords, OptionsOfFrameworks) {
  for (const auto& [verb, typed, meant] :
       {std::tuple{"simulate", "--tp", "--plan tp8.pp2.z1.mbs1"},
        {"simulate", "--micro-batch-size", "it is a part of the layout"},
        {"simulate", "--tensor-model-parallel-size", "it is a part of the layout"},
        {"plan", "--pp", "--fix tp=8,pp=2"},
        {"plan", "--gbs", "did you mean --global-batch?"},
        {"plan", "--batch-size", "did you mean --global-batch"},
        {"plan", "--gpus", "did you mean --cluster, such as 8x8xh100"},
        {"plan", "--nnodes", "did you mean --cluster"},
        {"simulate", "--seqlen", "did you mean --seq-len?"}}) {
    const Called c = call(Words{verb} + kLlama7bOn8 + Words{typed, "8"}, kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::usage) << typed;
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
}

TEST(PublicWords, WhatAnExportIsWrittenFor) {
  for (const char* typed : {"--target", "--framework", "--format", "--stack"}) {
    const Called c = call({"export", "plan.json", typed, "torchtitan", "-o", "job"}, kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::usage) << typed;
    EXPECT_TRUE(says(c, "did you mean --to, the framework that it is written for?"))
        << typed << ": " << c.err;
  }
}

TEST(PublicWords, MixturesOfExpertsAreNoDenseModel) {
  for (const char* model : {"mixtral-8x7b", "deepseek-v3", "Qwen3-30B-A3B", "llama-4-scout"}) {
    const Called c = simulate({"--model", model, "--cluster", "1x8xh100", "--plan", "z3.mbs1"});
    EXPECT_EQ(c.code, ExitCode::usage) << model;
    EXPECT_TRUE(says(c, "a mixture of experts")) << c.err;
    EXPECT_FALSE(says(c, "did you mean")) << c.err;
  }
  EXPECT_TRUE(says(simulate({"--model", "lama-3-8b", "--cluster", "1x8xh100", "--plan", "z3.mbs1"}),
                   "did you mean llama-3-8b"));
}

// In one sentence, for --plan and --from.
// NOLINTNEXTLINE(readability-function-size): a table of files
TEST(PublicWords, ConfigurationsOfTrainersOnOtherFrameworks) {
  const TempDir folder;
  for (
      const auto& [name, text, what, how] :
      {std::tuple{"factory.yaml",
                  "stage: sft\nfinetuning_type: full\ndeepspeed: examples/ds_z3_config.json\n",
                  "a LLaMA-Factory configuration", "--from examples/ds_z3_config.json"},
       {"axolotl.yml", "base_model: NousResearch/Llama-2-7b-hf\nsequence_len: 4096\nmicro_batch_size: 2\n",
        "an axolotl configuration", "--plan z3.mbs2"},
       {"tune.yaml", "model:\n  _component_: torchtune.models.llama3.llama3_8b\n",
        "a torchtune configuration", "--plan z3.mbs1"},
       {"args.json", R"({"output_dir": "out", "per_device_train_batch_size": 2, "deepspeed": "ds.json"})",
        "arguments of transformers' Trainer", "--from ds.json"},
       {"foundry.yaml", "max_seq_len: 2048\ndevice_train_microbatch_size: 8\n",
        "an llm-foundry configuration", "--plan z3.mbs8"},
       {"olmo.yaml", "model:\n  d_model: 4096\ndevice_train_microbatch_size: 2\n", "an OLMo configuration",
        "--plan z3.mbs2"},
       {"neox.yml",
        "\"pipe-parallel-size\": 2\n\"model-parallel-size\": 4\n\"num-layers\": 32\n"
        "\"train_micro_batch_size_per_gpu\": 4\n\"zero_optimization\": {\"stage\": 1}\n",
        "a GPT-NeoX configuration", "--plan tp4.pp2.z1.mbs4"},
       {"nemo2.yaml",
        "trainer:\n  _target_: nemo.lightning.Trainer\n  devices: 8\n  strategy:\n"
        "    _target_: nemo.lightning.MegatronStrategy\n    tensor_model_parallel_size: 8\n"
        "    pipeline_model_parallel_size: 2\n",
        "a NeMo 2 (NeMo-Run) recipe", "--plan tp8.pp2.z1.mbs1"},
       {"nemo2.py",
        "import nemo_run as run\nfrom nemo.collections import llm\nllm.llama3_8b.pretrain_recipe()\n",
        "a NeMo 2 (NeMo-Run) recipe", "--plan tp2.pp2.z1.mbs1"},
       {"paddle.json",
        R"({"per_device_train_batch_size": 1, "tensor_parallel_degree": 4, "pipeline_parallel_degree": 2, "sharding": "stage1"})",
        "a PaddleNLP configuration", "--plan tp4.pp2.z1.mbs1"},
       {"levanter.yaml", "model: {type: llama}\ntrainer: {mp: 'p=f32,c=bfloat16', train_batch_size: 256}\n",
        "a Levanter configuration", "--plan z3.mbs1"},
       {"litgpt.yaml", "model_name: Llama-2-7b\ntrain: {global_batch_size: 512, micro_batch_size: 4}\n",
        "a LitGPT configuration", "--plan z3.mbs4"},
       {"lightning.yaml", "trainer: {strategy: fsdp, devices: 8}\nmodel: {name: x}\n",
        "a Lightning configuration", "--plan z3.mbs1"},
       {"fsdp.json", R"({"fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]})",
        "an FSDP section of accelerate", "--plan z3.mbs1"},
       {"evo.py", "parallel = dict(zero1=dict(size=8), tensor=dict(size=2))\n", "an InternEvo configuration",
        "--plan tp2.pp2.z1.mbs1"},
       {"sft.py", "from transformers import TrainingArguments\nargs = TrainingArguments(output_dir='x')\n",
        "a program of transformers' Trainer", "--plan"},
       {"max.yml", "ici_fsdp_parallelism: 8\n", "a MaxText configuration", "--plan z3.mbs1"}}) {
    const auto file = folder.write(name, text).string();
    const Called plan = simulate(Words{"--plan", file} + kLlama7bOn8);
    EXPECT_EQ(plan.code, ExitCode::bad_input) << name;
    EXPECT_TRUE(says(plan, std::string("found ") + what)) << plan.err;
    EXPECT_TRUE(says(plan, how)) << plan.err;
    EXPECT_TRUE(says(simulate({"--from", file, "--cluster", "1x8xa100-80gb"}), std::string("found ") + what));
  }
  for (const auto& [name, text] :
       {std::pair{"job.sh", "#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n"},
        {"any.yaml", "a: 1\nb: 2\n"},
        {"sections.yaml", "model: {name: x}\ntraining: {epochs: 3}\nparallelism: {kind: none}\n"},
        {"batch.yaml", "train_batch_size: 64\nmodel: x\nlearning_rate: 1e-4\n"},
        {"any.json", R"({"a": 1})"}}) {
    const Called c = simulate(Words{"--plan", folder.write(name, text).string()} + kLlama7bOn8);
    EXPECT_EQ(c.code, ExitCode::bad_input) << name;
    EXPECT_TRUE(says(c, "expected a plan file, or a plan key")) << c.err;
    EXPECT_FALSE(says(c, "is missing")) << c.err;
    EXPECT_FALSE(says(c, "syntax error")) << c.err;
  }
  // A plan file that was cut keeps its own message.
  EXPECT_TRUE(says(
      simulate(Words{"--plan", folder.write("cut.json", R"({"schema": "sextant.plan_file/1", )").string()} +
               kLlama7bOn8),
      "line 1"));
}

// A slip of the keyboard, a part of a name, a size that no preset has: what comes near, or how to say it.
TEST(PublicWords, SlipsAndSizesLeadOn) {
  const auto asked = [](const Words& words) {
    const Called c = call(Words{"simulate", "--seq-len", "1024"} + words, kUnlimitedColumns);
    EXPECT_NE(c.code, ExitCode::ok) << words.back();
    return c;
  };
  for (const auto& [typed, meant] : {std::pair{"deepseed", "did you mean deepspeed-zero?"},
                                     {"depspeed", "did you mean deepspeed-zero?"},
                                     {"megatorn", "megatron-core"},
                                     {"megatron-cor", "did you mean megatron-core?"},
                                     {"torchtian", "did you mean torchtitan?"},
                                     {"nanotorn", "did you mean nanotron?"},
                                     {"colosal", "colossal-"},
                                     {"axolotol", "deepspeed-zero for DeepSpeed"},
                                     {"gpt-neox", "megatron-deepspeed-bloom"}})
    EXPECT_TRUE(says(asked(kLlama7bOn8 + Words{"--plan", "z1.mbs1", "--stack", typed}), meant))
        << typed << ": " << asked(kLlama7bOn8 + Words{"--plan", "z1.mbs1", "--stack", typed}).err;
  for (const auto& [typed, meant] : {std::pair{"300b", "no preset has about 300 billion parameters"},
                                     {"llama-300b", "--set model.n_layers="},
                                     {"llama-3-300B", "the nearest is llama-3.1-405b"},
                                     {"gpt-1t", "no preset has about 1000 billion parameters"},
                                     {"70b", "llama-2-70b"},
                                     {"llama-3-7b", "llama-2-7b"},
                                     {"lama-2-7b", "did you mean llama-2-7b?"},
                                     {"llama-2-70", "did you mean llama-2-70b?"},
                                     {"llama", "or another of"},
                                     {"qwen2.5", "qwen2.5-7b"}}) {
    const Called c = asked({"--cluster", "1x8xh100", "--plan", "z3.mbs1", "--model", typed});
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
  for (const auto& [typed, meant] : {std::pair{"bf16", "did you mean bf16-mixed"},
                                     {"bfloat16", "did you mean bf16-mixed"},
                                     {"fp16", "--set training.compute=fp16"},
                                     {"FP8", "did you mean fp8?"},
                                     {"fp8-hybrid", "did you mean fp8?"},
                                     {"nvfp4", "not planned"},
                                     {"fp32", "--set training.compute=fp32"}}) {
    const Called c = asked(kLlama7bOn8 + Words{"--plan", "z1.mbs1", "--precision", typed});
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
  for (const auto& [typed, meant] : {std::pair{"--sequence-length", "did you mean --seq-len?"},
                                     {"--sequence-lenght", "did you mean --seq-len?"},
                                     {"--global-batch-size", "did you mean --global-batch"},
                                     {"--fabric", "@FABRIC"},
                                     {"--world-size", "did you mean --cluster"},
                                     {"--fp8", "did you mean --precision?"}}) {
    const Called c = asked(kLlama7bOn8 + Words{"--plan", "z1.mbs1", typed, "8"});
    EXPECT_TRUE(says(c, meant)) << typed << ": " << c.err;
  }
}

TEST(PublicWords, UnitsThatLookAlikeAreTold) {
  const auto with = [](const char* option, const char* value) {
    return call(Words{"simulate", "--plan", "z1.mbs1", option, value} + kLlama7bOn8, kUnlimitedColumns);
  };
  EXPECT_TRUE(says(with("--seq-len", "8k"), "8k is written 8192"));
  EXPECT_TRUE(says(with("--seq-len", "128K"), "128K is written 131072"));
  EXPECT_TRUE(says(with("--global-batch", "4M"), "a batch of 4M tokens has 4M / --seq-len sequences"));
  EXPECT_FALSE(says(with("--seq-len", "8kb"), "is written"));
  for (const auto& [setting, meant] : {std::pair{"fabric.bandwidth_Gbps=400", "400 Gb/s are 50 GB/s"},
                                       {"node.nic_bandwidth_Gbps=400", "did you mean nic_bandwidth_GBps?"},
                                       {"device.memory_GB=80", "did you mean memory_GiB?"},
                                       {"device.memory_GB=64", "80 GB are 74.5"}}) {
    const Called c = simulate(Words{"--plan", "z1.mbs1", "--set", setting} + kLlama7bOn8);
    EXPECT_EQ(c.code, ExitCode::usage) << setting;
    EXPECT_TRUE(says(c, meant)) << setting << ": " << c.err;
  }
  EXPECT_FALSE(
      says(simulate(Words{"--plan", "z1.mbs1", "--set", "device.memory_Gib=80"} + kLlama7bOn8), "74.5"));
}

// None of them changes what a plan costs.
TEST(PublicWords, RopeScalingsOfAnyNameArePlanned) {
  const TempDir folder;
  const auto plan = [&](const char* scaling) {
    const auto file = folder.write(
        "config.json",
        std::string(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 1024,
        "max_position_embeddings": 65536, "rope_scaling": )") +
            scaling + "}");
    return call({"simulate", "--model", file.string(), "--cluster", "1x8xh100", "--plan", "z1.mbs1",
                 "--seq-len", "1024", "--global-batch", "8"},
                kUnlimitedColumns);
  };
  for (const char* scaling :
       {R"({"type": "su", "long_factor": [1.0], "short_factor": [1.0]})",
        R"({"type": "mrope", "mrope_section": [16, 24, 24]})", R"({"rope_type": "ntk", "factor": 4.0})",
        R"({"rope_type": "proportional"})", R"({"rope_type": "llama3", "factor": 8.0})"}) {
    const Called c = plan(scaling);
    EXPECT_EQ(c.code, ExitCode::ok) << scaling << c.err;
    EXPECT_TRUE(says(c, "sextant run refuses it")) << c.err;
  }
  EXPECT_FALSE(says(plan(R"({"rope_type": "yarn", "factor": 4.0})"), "sextant run refuses it"));
}

// Logs that are not read say what printed them, and how to give their step all the same.
TEST(PublicWords, LogsOfOtherPrograms) {
  const TempDir folder;
  for (const auto& [text, what] :
       {std::pair{
            "step    2/18865 | loss 10.868 (+nanz)| norm 15.3 (+nanz)| lr 8.57e-07 | 2856.36 ms | 45.6% bf16 "
            "MFU | 183537 tok/s\n",
            "a log of llm.c"},
        {"Epoch 1 | iter 10 step 1 | loss train: 10.5, val: n/a | iter time: 412.11 ms (step)\n",
         "a log of LitGPT"},
        {"iter 10: loss 9.1, time 512.11ms, mfu 40.11%\n", "a log of nanoGPT"},
        {"{'loss': 1.4, 'grad_norm': 2.1, 'learning_rate': 1.9e-05, 'epoch': 0.01}\n",
         "a log of transformers' Trainer"},
        {"  2%|2         | 20/1000 [02:46<2:16:00,  8.31s/it]\n", "a program with a progress bar"},
        {"Epoch 0:   1%|1  | 10/1000 [00:33<55:00, 3.30s/it, loss=8.1, v_num=0]\n",
         "a program with a progress bar"},
        {"Throughput: 5.75 samples/sec, TFLOPS per GPU by Megatron: 184.7, TFLOPS per GPU: 142.1\n",
         "a log of Colossal-AI's benchmark"},
        {R"({"_step": 100, "iteration-time": 3.301, "batch-size": 256})",
         "metrics of Megatron-LM as JSON"}}) {
    const Called c = call(
        Words{"calibrate", "--log", folder.write("run.log", text).string() + "=dp8.z3.mbs1"} + kLlama7bOn8,
        kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::bad_input) << text;
    EXPECT_TRUE(says(c, what)) << c.err;
    EXPECT_TRUE(says(c, "step_time_s of a table of runs: --runs")) << c.err;
  }
  EXPECT_TRUE(
      says(call(Words{"calibrate", "--log", folder.write("run.log", "nothing\n").string()} + kLlama7bOn8,
                kUnlimitedColumns),
           "found no line with a step time"));
  for (const auto& [text, what, how] :
       {std::tuple{"Step,run - loss\n1,3.31\n", "a table or metrics as JSON", "--runs FILE.csv"},
        {"{\"step\": 1, \"loss\": 2.3}\n", "a table or metrics as JSON", "--runs FILE.csv"},
        {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
         "a run that went out of memory before its first step", "calibrate --tried FILE"}}) {
    const Called c = call(Words{"calibrate", "--log", folder.write("run.log", text).string()} + kLlama7bOn8,
                          kUnlimitedColumns);
    EXPECT_EQ(c.code, ExitCode::bad_input) << text;
    EXPECT_TRUE(says(c, what) && says(c, how)) << c.err;
  }
}

// torchtitan prints how much memory its devices have: an H100 of 95 GiB is not the one of 80.
TEST(PublicWords, ADeviceWithMoreMemoryIsAnother) {
  const TempDir folder;
  const auto calibrate = [&](const char* gib, const char* cluster) {
    const auto log =
        folder.write("run.log", std::string("CUDA capacity: NVIDIA H100 with ") + gib +
                                    "GiB memory\nBuilding 1-D device mesh with ['dp_shard'], [8]\n"
                                    "step:  1  loss: 12.0  memory: 40.00GiB(28.00%)  tps: 6,000\n"
                                    "step: 10  loss: 10.0  memory: 40.00GiB(28.00%)  tps: 6,700\n"
                                    "step: 20  loss:  9.0  memory: 40.00GiB(28.00%)  tps: 6,710\n");
    return call({"calibrate", "--log", log.string() + "=dp8.z3.mbs1", "--model", "llama-3-8b", "--cluster",
                 cluster, "--seq-len", "8192", "--global-batch", "8"},
                kUnlimitedColumns);
  };
  EXPECT_EQ(calibrate("79.10", "1x8xh100").code, ExitCode::ok);
  const Called more = calibrate("95.00", "1x8xh100");
  EXPECT_EQ(more.code, ExitCode::bad_input);
  EXPECT_TRUE(says(more, "NVIDIA H100 with 95.0 GiB")) << more.err;
  EXPECT_EQ(calibrate("95.00", "1x8xH100-SXM5-96GB-HBM2e").code, ExitCode::ok)
      << calibrate("95.00", "1x8xH100-SXM5-96GB-HBM2e").err;
}

}  // namespace
}  // namespace sextant
