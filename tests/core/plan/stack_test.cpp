// Every stack refuses by name what its framework cannot do.
#include <gtest/gtest.h>

#include "core/plan/plan_key.hpp"
#include "core/plan/stack_spec.hpp"
#include "tests/core/plan/refusal.hpp"

namespace sextant {
namespace {

// cuBLASLt multiplies fp8 where extents are multiples of 16, and the runtime pads nothing.
TEST(StackSpec, TheRuntimeMultipliesInFp8WhereExtentsAllowIt) {
  TrainingSpec t;
  t.compute = Dtype::fp8;
  EXPECT_EQ(refusal("sextant", plain(), t), "");
  t.seq_len = 24;
  EXPECT_NE(refusal("sextant", plain(), t).find("the number of tokens of a micro-batch is 24"),
            std::string::npos)
      << refusal("sextant", plain(), t);
  EXPECT_EQ(refusal("megatron-core", plain(), t), "");
  t.compute = Dtype::bf16;
  EXPECT_EQ(refusal("sextant", plain(), t), "");
}

TEST(StackRefusals, WhatGoesOnlyWithLowerZeroStages) {
  ParallelPlan offloaded = plain();
  offloaded.zero_stage = 1;
  offloaded.optimizer_offload = 1;
  EXPECT_EQ(refusal("megatron-core", offloaded), "");
  offloaded.zero_stage = 3;
  EXPECT_NE(refusal("megatron-core", offloaded).find("only up to ZeRO stage 1"), std::string::npos);
  ParallelPlan tiled = plain();
  tiled.tp = 2;
  tiled.sequence_parallel = tiled.overlap_tp = true;
  tiled.zero_stage = 1;
  EXPECT_EQ(refusal("megatron-core", tiled), "");
  tiled.zero_stage = 3;
  EXPECT_NE(refusal("megatron-core", tiled).find("tensor-parallel collectives only up to"),
            std::string::npos);
  EXPECT_EQ(refusal("torchtitan", tiled), "") << "a rule of Megatron-FSDP alone";
  EXPECT_FALSE(refuses(load_stack("megatron-core", preset_dir(), "blackwell"), tiled, llama13b(), {}));
}

TEST(StackRefusals, TensorParallelismBeyondTheKvHeads) {
  ModelSpec m = llama13b();
  m.n_kv_heads = 8;
  ParallelPlan p = plain();
  p.tp = 10;
  const auto text = [&](const char* stack) {
    const auto r = refuses(load_stack(stack, preset_dir()), p, m, TrainingSpec{});
    return r ? r->text : "";
  };
  for (const char* stack : {"torchtitan", "nanotron", "megatron-lm-2024", "nemo-dgxc", "nemo-2024",
                            "colossal-ai", "paddle-llama", "sextant"})
    EXPECT_NE(text(stack).find("cannot cut 8 KV heads into tp=10"), std::string::npos)
        << stack << ": " << text(stack);
  EXPECT_EQ(text("megatron-core"), "");
}

// DeepSpeed's engine raises a NotImplementedError there.
TEST(StackRefusals, SumsOfGradientsInAnotherFormatNeedZero) {
  TrainingSpec t;
  t.parameter = Dtype::bf16;
  t.gradient = Dtype::fp32;
  ParallelPlan p = plain();
  const std::string text = refusal("deepspeed-zero", p, t);
  EXPECT_NE(text.find("sums gradients of bf16 parameters in fp32 only from ZeRO stage 1"), std::string::npos)
      << text;
  EXPECT_NE(text.find("training.gradient=bf16"), std::string::npos) << text;
  t.parameter = Dtype::fp16;
  EXPECT_NE(refusal("deepspeed-zero", p, t), "");
  EXPECT_EQ(refusal("megatron-core", p, t), "");
  t.gradient = Dtype::fp16;
  EXPECT_EQ(refusal("deepspeed-zero", p, t), "");
  t.parameter = t.gradient = Dtype::fp32;
  EXPECT_EQ(refusal("deepspeed-zero", p, t), "");
  p.zero_stage = 1;
  t.parameter = Dtype::bf16;
  EXPECT_EQ(refusal("deepspeed-zero", p, t), "");
  // A ratio of the optimizer on the host came after DeepSpeed 0.6.
  p.zero_stage = 3;
  p.optimizer_offload = 0.5;
  t.gradient = Dtype::bf16;
  EXPECT_EQ(refusal("deepspeed-zero", p, t), "");
  const std::string early = refusal("megatron-deepspeed-zero3", p, t);
  EXPECT_NE(early.find("cannot keep a part of the optimizer state on the host; use oo100 or oo0"),
            std::string::npos)
      << early;
}

// What a framework got in a later version than the one that a stack is: NVIDIA/Megatron-LM by its tags.
TEST(StackRefusals, AbilitiesOfLaterVersions) {
  const auto can = [](const char* stack) { return load_stack(stack, preset_dir()).can; };
  for (const char* old : {"megatron-lm-2021", "megatron-lm-2024", "nemo-2024"}) {
    EXPECT_FALSE(can(old).optimizer_offload) << old;               // in v0.12.0rc3, not in v0.11.0
    EXPECT_FALSE(can(old).shard_degree) << old;                    // in v0.11.0, not in core_v0.9.0
    EXPECT_EQ(can(old).uneven_stages, UnevenStages::none) << old;  // in core_v0.9.0, not in core_v0.8.0
    for (const int zero : can(old).zero_stages) EXPECT_LE(zero, 1) << old;
  }
  EXPECT_FALSE(can("megatron-lm-2024").activation_offload);  // no option of arguments.py
  for (const char* three :
       {"megatron-lm-2021", "megatron-lm-2024", "nemo-2024"})  // an assertion up to core_v0.7.0
    EXPECT_EQ(can(three).interleaved_from_pp, 3) << three;
  for (const char* later : {"nemo-dgxc", "megatron-core"}) {
    EXPECT_TRUE(can(later).optimizer_offload) << later;
    EXPECT_EQ(can(later).interleaved_from_pp, 2) << later;
  }
}

// What wrappers of FSDP1 leave out of it, what Aleph Alpha's and Paddle's code asserts, and what DeepSpeed has no more.
TEST(StackRefusals, AbilitiesAsTheirCodeHasThem) {
  const auto can = [](const char* stack) { return load_stack(stack, preset_dir()).can; };
  EXPECT_TRUE(can("fsdp1-eager").optimizer_offload);
  for (const char* wrapper : {"modalities", "llm-foundry"}) {
    EXPECT_FALSE(can(wrapper).optimizer_offload) << wrapper;
    EXPECT_FALSE(can(wrapper).parameter_offload) << wrapper;
    EXPECT_FALSE(can(wrapper).recompute_layers) << wrapper;
    EXPECT_TRUE(can(wrapper).shard_degree) << wrapper;
  }
  EXPECT_FALSE(can("aleph-alpha").recompute_selective);
  EXPECT_EQ(can("paddle-llama").interleaved_from_pp, 3);
  EXPECT_EQ(can("paddle-llama").shard_degree_from_zero, 2);
  for (const char* deepspeed : {"deepspeed-zero", "megatron-deepspeed-zero3"})
    EXPECT_FALSE(can(deepspeed).shard_degree) << deepspeed;
}

// Megatron-Core's transformer_config.py: activations of fewer layers than the model has. SMP and DeepSpeed know no such limit.
TEST(StackRefusals, ActivationsOfAllLayersOnTheHost) {
  const auto refused = [](const char* stack, int layers) {
    ParallelPlan p;
    p.dp = 8;
    p.zero_stage = 1;
    p.activation_offload = layers;
    if (std::string_view(stack) != "megatron-core") {
      p.zero_stage = 3;
      p.recompute.kind = RecomputeKind::full;
    }
    return refusal(stack, p).find("fewer than all") != std::string::npos;
  };
  const int layers = llama13b().n_layers;
  EXPECT_TRUE(refused("megatron-core", layers));
  EXPECT_FALSE(refused("megatron-core", layers - 1));
  EXPECT_FALSE(refused("smp-v2", layers));
  EXPECT_FALSE(refused("deepspeed-zero", layers));
}

TEST(StackRefusals, AllReasonsAreNamedAtOnce) {
  ParallelPlan p = plain();
  p.tp = 2;
  p.zero_stage = 1;
  p.sequence_parallel = p.overlap_grad_reduce = true;
  p.recompute.kind = RecomputeKind::selective;
  const std::string text = refusal("megatron-lm-2021", p);
  for (const char* part : {"megatron-lm-2021 has no sequence parallelism (use nosp); ",
                           "has no ZeRO stage 1 (", "has no selective", "gradient reduction", "use nogr"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  p.tp = 2;
  p.sequence_parallel = true;
  p.overlap_tp = true;  // what follows from another one is not told
  EXPECT_EQ(refusal("llm-foundry", p).find("sequence"), std::string::npos);
}

}  // namespace
}  // namespace sextant
