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
  offloaded.zero_stage = 1, offloaded.optimizer_offload = 1;
  EXPECT_EQ(refusal("megatron-core", offloaded), "");
  offloaded.zero_stage = 3;
  EXPECT_NE(refusal("megatron-core", offloaded).find("only up to ZeRO stage 1"), std::string::npos);
  ParallelPlan tiled = plain();
  tiled.tp = 2, tiled.sequence_parallel = tiled.overlap_tp = true, tiled.zero_stage = 1;
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
  t.parameter = Dtype::bf16, t.gradient = Dtype::fp32;
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
  p.zero_stage = 1, t.parameter = Dtype::bf16;
  EXPECT_EQ(refusal("deepspeed-zero", p, t), "");
  // A ratio of the optimizer on the host came after DeepSpeed 0.6.
  p.zero_stage = 3, p.optimizer_offload = 0.5, t.gradient = Dtype::bf16;
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
    p.dp = 8, p.zero_stage = 1, p.activation_offload = layers;
    if (std::string_view(stack) != "megatron-core") p.zero_stage = 3, p.recompute.kind = RecomputeKind::full;
    return refusal(stack, p).find("fewer than all") != std::string::npos;
  };
  const int layers = llama13b().n_layers;
  EXPECT_TRUE(refused("megatron-core", layers));
  EXPECT_FALSE(refused("megatron-core", layers - 1));
  EXPECT_FALSE(refused("smp-v2", layers));
  EXPECT_FALSE(refused("deepspeed-zero", layers));
}

struct Case {
  const char* stack;
  const char* named;  // the feature that must be named
  void (*ask)(ParallelPlan&);
};

TEST(StackRefusals, EachNamesTheFeature) {
  const Case cases[] = {
      {"megatron-lm-2021", "ZeRO stage 1", [](ParallelPlan& p) { p.zero_stage = 1; }},
      {"megatron-lm-2021", "sequence parallelism",
       [](ParallelPlan& p) { p.tp = 2, p.sequence_parallel = true; }},
      {"megatron-llama-2023", "interleaved",
       [](ParallelPlan& p) {
         p.zero_stage = 2, p.pp = 2, p.vp = 2, p.schedule = PipelineSchedule::interleaved;
       }},
      {"megatron-llama-2023", "do not divide", [](ParallelPlan& p) { p.zero_stage = 2, p.dp = 12; }},
      {"megatron-core", "ZeRO stage 3 with pipeline", [](ParallelPlan& p) { p.zero_stage = 3, p.pp = 2; }},
      {"megatron-core", "zero-bubble",
       [](ParallelPlan& p) { p.pp = 2, p.schedule = PipelineSchedule::zero_bubble; }},
      {"deepspeed-zero", "ZeRO stage 2 with pipeline", [](ParallelPlan& p) { p.zero_stage = 2, p.pp = 2; }},
      {"torchtitan", "ZeRO stage 1", [](ParallelPlan& p) { p.zero_stage = 1; }},
      {"smp-v2", "pipeline parallelism", [](ParallelPlan& p) { p.zero_stage = 3, p.pp = 2; }},
      {"smp-v2", "full recomputation", [](ParallelPlan& p) { p.zero_stage = 3, p.activation_offload = 4; }},
      {"colossal-ai", "ZeRO stage 3", [](ParallelPlan& p) { p.zero_stage = 3; }},
      {"colossal-ai", "ZeRO stage 2 with pipeline", [](ParallelPlan& p) { p.zero_stage = 2, p.pp = 2; }},
      {"colossal-gemini", "pipeline parallelism", [](ParallelPlan& p) { p.zero_stage = 3, p.pp = 2; }},
      {"megatron-deepspeed-bloom", "interleaved",
       [](ParallelPlan& p) {
         p.zero_stage = 1, p.pp = 2, p.vp = 2, p.schedule = PipelineSchedule::interleaved;
       }},
      {"megatron-deepspeed-bloom", "context parallelism", [](ParallelPlan& p) { p.cp = 2; }},
      {"llm-foundry", "tensor parallelism", [](ParallelPlan& p) { p.zero_stage = 3, p.tp = 2; }},
      {"megatron-lm-2021", "interleaves only pp=3",
       [](ParallelPlan& p) { p.pp = 2, p.vp = 5, p.schedule = PipelineSchedule::interleaved; }},
      {"megatron-lm-2024", "interleaves only pp=3",
       [](ParallelPlan& p) { p.pp = 2, p.vp = 5, p.schedule = PipelineSchedule::interleaved; }},
      {"megatron-lm-2024", "ZeRO stage 3", [](ParallelPlan& p) { p.zero_stage = 3; }},
      {"megatron-lm-2024", "optimizer", [](ParallelPlan& p) { p.zero_stage = 1, p.optimizer_offload = 1; }},
      {"megatron-lm-2024", "equal stages: 40 layers over 16", [](ParallelPlan& p) { p.pp = 16; }},
      {"nemo-2024", "equal stages: 40 layers over 16", [](ParallelPlan& p) { p.pp = 16; }},
      {"llm-c", "pipeline parallelism", [](ParallelPlan& p) { p.pp = 2; }},
      {"aleph-alpha", "gradient reduction",
       [](ParallelPlan& p) { p.zero_stage = 1, p.overlap_grad_reduce = true; }},
      {"nanotron", "parameter gather",
       [](ParallelPlan& p) { p.zero_stage = 1, p.overlap_param_gather = true; }},
      {"nanotron", "selective", [](ParallelPlan& p) { p.recompute.kind = RecomputeKind::selective; }},
      {"megatron-core", "last bucket", [](ParallelPlan& p) { p.last_bucket_split = 4; }},
      {"torchtitan", "use ax-tp-cp-dp-pp",
       [](ParallelPlan& p) {
         p.tp = p.pp = 2, p.axis_order = {Axis::tp, Axis::cp, Axis::pp, Axis::dp};
       }},
      {"megatron-core", "use ax-tp-cp-dp-pp or ax-tp-cp-pp-dp",
       [](ParallelPlan& p) {
         p.tp = p.pp = 2, p.axis_order = {Axis::pp, Axis::tp, Axis::cp, Axis::dp};
       }},
      {"llm-c", "optimizer state on the host", [](ParallelPlan& p) { p.optimizer_offload = 0.5; }},
      {"megatron-core", "use ZeRO stage 3 or", [](ParallelPlan& p) { p.parameter_offload = true; }},
      {"megatron-core", "use more TP",  // stage 3 is what it has
       [](ParallelPlan& p) { p.zero_stage = 3, p.parameter_offload = true; }},
      {"colossal-ai", "hybrid sharding", [](ParallelPlan& p) { p.zero_stage = 1, p.shard_degree = 4; }},
      {"megatron-lm-2021", "equal stages", [](ParallelPlan& p) { p.pp = 3; }},
      {"torchtitan", "zero-bubble schedule of one chunk",
       [](ParallelPlan& p) { p.pp = 2, p.schedule = PipelineSchedule::zero_bubble; }},
      {"megatron-core", "activations on the host beside pipeline stages",
       [](ParallelPlan& p) { p.pp = 2, p.activation_offload = 1; }},
      {"megatron-core", "activations on the host beside recomputation",
       [](ParallelPlan& p) { p.recompute.kind = RecomputeKind::selective, p.activation_offload = 1; }},
      {"torchtitan", "beside pipeline stages",
       [](ParallelPlan& p) {
         p.zero_stage = 2, p.pp = 2, p.optimizer_offload = 1, p.parameter_offload = true;
       }},
      // 128 micro-batches over 5 stages; PyTorch makes 25 rounds of them.
      {"megatron-lm-2024", "only multiples of pp=5 micro-batches, not 128",
       [](ParallelPlan& p) { p.pp = 5, p.vp = 2, p.schedule = PipelineSchedule::interleaved; }},
      {"torchtitan", "128 micro-batches over pp=5 in 25 equal rounds",
       [](ParallelPlan& p) { p.pp = 5, p.vp = 2, p.schedule = PipelineSchedule::interleaved; }},
      {"fsdp1-eager", "of one replica",
       [](ParallelPlan& p) { p.dp = 1, p.optimizer_offload = 1, p.parameter_offload = true; }},
      {"fsdp1-eager", "does not add up",
       [](ParallelPlan& p) { p.zero_stage = 3, p.optimizer_offload = 1, p.parameter_offload = true; }},
      {"torchtitan", "only from ZeRO stage 3",
       [](ParallelPlan& p) { p.zero_stage = 2, p.optimizer_offload = 1, p.parameter_offload = true; }},
      {"torchtitan", "leave nosp or tpo out", [](ParallelPlan& p) { p.tp = 2, p.overlap_tp = true; }},
      {"colossal-ai", "use oo100 or oo0",
       [](ParallelPlan& p) { p.zero_stage = 1, p.optimizer_offload = 0.5; }},
      {"colossal-ai", "use oo100 or oo0",  // of one replica neither: no stage has it
       [](ParallelPlan& p) { p.dp = 1, p.optimizer_offload = 0.5; }},
      {"colossal-ai", "use more TP", [](ParallelPlan& p) { p.zero_stage = 1, p.parameter_offload = true; }},
      {"megatron-core", "leave nosp or tpo out", [](ParallelPlan& p) { p.tp = 2, p.overlap_tp = true; }},
      {"nanotron", "leave nosp or tpo out", [](ParallelPlan& p) { p.tp = 2, p.overlap_tp = true; }},
      {"paddle-llama", "hybrid sharding (shard_degree=2) only from ZeRO stage 2",
       [](ParallelPlan& p) { p.zero_stage = 1, p.shard_degree = 2; }},
      {"deepspeed-zero", "hybrid sharding", [](ParallelPlan& p) { p.zero_stage = 3, p.shard_degree = 2; }},
      {"deepspeed-zero", "optimizer state on the host only from ZeRO stage 1",
       [](ParallelPlan& p) { p.optimizer_offload = 1; }},
      {"deepspeed-zero", "a part of the optimizer state on the host only from ZeRO stage 3",
       [](ParallelPlan& p) { p.zero_stage = 2, p.optimizer_offload = 0.5; }},
      {"deepspeed-zero", "parameters on the host only from ZeRO stage 3",
       [](ParallelPlan& p) { p.zero_stage = 2, p.optimizer_offload = 1, p.parameter_offload = true; }},
      {"torchtitan", "parameters on the host only with all of the optimizer state",
       [](ParallelPlan& p) { p.zero_stage = 3, p.optimizer_offload = 0.5, p.parameter_offload = true; }},
      {"torchtitan", "optimizer state on the host only with the parameters",
       [](ParallelPlan& p) { p.zero_stage = 3, p.optimizer_offload = 1; }},
      {"colossal-gemini", "parameters on the host only with all of the optimizer state",
       [](ParallelPlan& p) { p.zero_stage = 3, p.parameter_offload = true; }},
      {"torchtitan", "has no ZeRO stage 0 beside them; use ZeRO stage 2 or 3 with shard_degree=2",
       [](ParallelPlan& p) { p.cp = 2; }},
      {"torchtitan-eager", "has no ZeRO stage 0 beside them; use ZeRO stage 2 or 3",
       [](ParallelPlan& p) { p.cp = 2, p.dp = 1; }},
      {"torchtitan", "whole groups of cp=4 ranks, not over 2",
       [](ParallelPlan& p) { p.cp = 4, p.zero_stage = 3, p.shard_degree = 2; }},
      {"torchtitan", "whole groups of cp=4 ranks, not over 1",
       [](ParallelPlan& p) { p.cp = 4, p.zero_stage = 2, p.shard_degree = 1; }},
      {"deepspeed-zero", "over the 8 replicas always in bf16 beside pipeline stages",
       [](ParallelPlan& p) { p.pp = 2; }},
      {"deepspeed-zero", "use ZeRO stage 1", [](ParallelPlan& p) { p.pp = 4, p.tp = 2; }},
      {"megatron-deepspeed-bloom-bf16", "over the 8 replicas always in bf16, and has no ZeRO stage 0",
       [](ParallelPlan&) {}},
      {"colossal-ai", "a part of the optimizer state",
       [](ParallelPlan& p) { p.zero_stage = 1, p.optimizer_offload = 0.5; }},
  };
  for (const auto& c : cases) {
    ParallelPlan p = plain();
    c.ask(p);
    const std::string text = refusal(c.stack, p);
    EXPECT_NE(text.find(c.named), std::string::npos)
        << c.stack << ": '" << text << "' does not name " << c.named;
    EXPECT_NE(text.find("; "), std::string::npos) << "no advice in '" << text << "'";
    EXPECT_EQ(text.rfind(c.stack, 0), 0u) << text;
  }
}

TEST(StackRefusals, AllReasonsAreNamedAtOnce) {
  ParallelPlan p = plain();
  p.tp = 2, p.zero_stage = 1, p.sequence_parallel = p.overlap_grad_reduce = true;
  p.recompute.kind = RecomputeKind::selective;
  const std::string text = refusal("megatron-lm-2021", p);
  for (const char* part : {"megatron-lm-2021 has no sequence parallelism (use nosp); ",
                           "has no ZeRO stage 1 (", "has no selective", "gradient reduction", "use nogr"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  p.tp = 2, p.sequence_parallel = true, p.overlap_tp = true;  // what follows from another one is not told
  EXPECT_EQ(refusal("llm-foundry", p).find("sequence"), std::string::npos);
}

}  // namespace
}  // namespace sextant
