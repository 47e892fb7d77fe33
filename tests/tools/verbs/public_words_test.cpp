// What people call stacks, options, models and files that are no plan: the answer leads on. Neighbours of what they gave.
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/temp_dir.hpp"
#include "tests/tools/verbs/call.hpp"
#include "tests/tools/verbs/public_question.hpp"

namespace sextant {
namespace {

using public_question::kLlama7bOn8;

Called simulate(const Words& more) {
  return call(Words{"simulate", "--seq-len", "1024"} + more, kUnlimitedColumns);
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
TEST(PublicWords, ConfigurationsOfTrainersOnOtherFrameworks) {
  const TempDir folder;
  for (const auto& [name, text, what, how] :
       {std::tuple{"factory.yaml",
                   "stage: sft\nfinetuning_type: full\ndeepspeed: examples/ds_z3_config.json\n",
                   "a LLaMA-Factory configuration", "--from examples/ds_z3_config.json"},
        {"axolotl.yml", "base_model: NousResearch/Llama-2-7b-hf\nsequence_len: 4096\nmicro_batch_size: 2\n",
         "an axolotl configuration", "--plan dp8.z3.mbs1"},
        {"tune.yaml", "model:\n  _component_: torchtune.models.llama3.llama3_8b\n",
         "a torchtune configuration", "--plan dp8.z3.mbs1"},
        {"args.json", R"({"output_dir": "out", "per_device_train_batch_size": 2, "deepspeed": "ds.json"})",
         "arguments of transformers' Trainer", "--from ds.json"},
        {"foundry.yaml", "max_seq_len: 2048\ndevice_train_microbatch_size: 8\n",
         "an llm-foundry configuration", "--plan dp8.z3.mbs1"},
        {"max.yml", "ici_fsdp_parallelism: 8\n", "a MaxText configuration", "--plan dp8.z3.mbs1"}}) {
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
        {"  2%|2         | 20/1000 [02:46<2:16:00,  8.31s/it]\n", "a program with a progress bar"}}) {
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
