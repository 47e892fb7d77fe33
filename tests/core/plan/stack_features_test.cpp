// Every stack refuses by name what its framework cannot do: one feature a case.
#include <array>
#include <span>

#include <gtest/gtest.h>

#include "core/plan/stack_spec.hpp"
#include "tests/core/plan/refusal.hpp"

namespace sextant {
namespace {

// Of plain(), what is asked for.
struct AskedFor {
  int tp = 1, cp = 1, pp = 1, dp = 8, vp = 1;
  bool sequence_parallel = false;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int zero_stage = 0, shard_degree = 0;
  RecomputeKind recompute = RecomputeKind::none;
  double optimizer_offload = 0;
  bool parameter_offload = false;
  int activation_offload = 0, last_bucket_split = 1;
  bool overlap_grad_reduce = false, overlap_param_gather = false, overlap_tp = false;
  AxisOrder axis_order = ParallelPlan{}.axis_order;

  ParallelPlan plan() const {
    ParallelPlan p = plain();
    p.tp = tp;
    p.cp = cp;
    p.pp = pp;
    p.dp = dp;
    p.vp = vp;
    p.sequence_parallel = sequence_parallel;
    p.schedule = schedule;
    p.zero_stage = zero_stage;
    p.shard_degree = shard_degree;
    p.recompute.kind = recompute;
    p.optimizer_offload = optimizer_offload;
    p.parameter_offload = parameter_offload;
    p.activation_offload = activation_offload;
    p.last_bucket_split = last_bucket_split;
    p.overlap_grad_reduce = overlap_grad_reduce;
    p.overlap_param_gather = overlap_param_gather;
    p.overlap_tp = overlap_tp;
    p.axis_order = axis_order;
    return p;
  }
};

struct Case {
  const char* stack;
  const char* named;  // the feature that must be named
  AskedFor asked;
};

void expect_named(std::span<const Case> cases) {
  for (const auto& c : cases) {
    const std::string text = refusal(c.stack, c.asked.plan());
    EXPECT_NE(text.find(c.named), std::string::npos)
        << c.stack << ": '" << text << "' does not name " << c.named;
    EXPECT_NE(text.find("; "), std::string::npos) << "no advice in '" << text << "'";
    EXPECT_EQ(text.rfind(c.stack, 0), 0u) << text;
  }
}

TEST(StackFeatures, MegatronsNameWhatTheyLack) {
  expect_named(std::to_array<Case>({
      {"megatron-lm-2021", "ZeRO stage 1", {.zero_stage = 1}},
      {"megatron-lm-2021", "sequence parallelism", {.tp = 2, .sequence_parallel = true}},
      {"megatron-llama-2023",
       "interleaved",
       {.pp = 2, .vp = 2, .schedule = PipelineSchedule::interleaved, .zero_stage = 2}},
      {"megatron-llama-2023", "do not divide", {.dp = 12, .zero_stage = 2}},
      {"megatron-core", "ZeRO stage 3 with pipeline", {.pp = 2, .zero_stage = 3}},
      {"megatron-core", "zero-bubble", {.pp = 2, .schedule = PipelineSchedule::zero_bubble}},
      {"megatron-lm-2021",
       "interleaves only pp=3",
       {.pp = 2, .vp = 5, .schedule = PipelineSchedule::interleaved}},
      {"megatron-lm-2024",
       "interleaves only pp=3",
       {.pp = 2, .vp = 5, .schedule = PipelineSchedule::interleaved}},
      {"megatron-lm-2024", "ZeRO stage 3", {.zero_stage = 3}},
      {"megatron-lm-2024", "optimizer", {.zero_stage = 1, .optimizer_offload = 1}},
      {"megatron-lm-2024", "equal stages: 40 layers over 16", {.pp = 16}},
      {"nemo-2024", "equal stages: 40 layers over 16", {.pp = 16}},
      {"megatron-core", "last bucket", {.last_bucket_split = 4}},
      {"megatron-core",
       "use ax-tp-cp-dp-pp or ax-tp-cp-pp-dp",
       {.tp = 2, .pp = 2, .axis_order = {Axis::pp, Axis::tp, Axis::cp, Axis::dp}}},
      {"megatron-core", "use ZeRO stage 3 or", {.parameter_offload = true}},
      // Stage 3 is what it has.
      {"megatron-core", "use more TP", {.zero_stage = 3, .parameter_offload = true}},
      {"megatron-lm-2021", "equal stages", {.pp = 3}},
      {"megatron-core", "activations on the host beside pipeline stages", {.pp = 2, .activation_offload = 1}},
      {"megatron-core",
       "activations on the host beside recomputation",
       {.recompute = RecomputeKind::selective, .activation_offload = 1}},
      // 128 micro-batches over 5 stages; PyTorch makes 25 rounds of them.
      {"megatron-lm-2024",
       "only multiples of pp=5 micro-batches, not 128",
       {.pp = 5, .vp = 2, .schedule = PipelineSchedule::interleaved}},
      {"megatron-core", "leave nosp or tpo out", {.tp = 2, .overlap_tp = true}},
  }));
}

TEST(StackFeatures, DeepSpeedAndItsLikeNameWhatTheyLack) {
  expect_named(std::to_array<Case>({
      {"deepspeed-zero", "ZeRO stage 2 with pipeline", {.pp = 2, .zero_stage = 2}},
      {"smp-v2", "pipeline parallelism", {.pp = 2, .zero_stage = 3}},
      {"smp-v2", "full recomputation", {.zero_stage = 3, .activation_offload = 4}},
      {"colossal-ai", "ZeRO stage 3", {.zero_stage = 3}},
      {"colossal-ai", "ZeRO stage 2 with pipeline", {.pp = 2, .zero_stage = 2}},
      {"colossal-gemini", "pipeline parallelism", {.pp = 2, .zero_stage = 3}},
      {"megatron-deepspeed-bloom",
       "interleaved",
       {.pp = 2, .vp = 2, .schedule = PipelineSchedule::interleaved, .zero_stage = 1}},
      {"megatron-deepspeed-bloom", "context parallelism", {.cp = 2}},
      {"aleph-alpha", "gradient reduction", {.zero_stage = 1, .overlap_grad_reduce = true}},
      {"colossal-ai", "hybrid sharding", {.zero_stage = 1, .shard_degree = 4}},
      {"colossal-ai", "use oo100 or oo0", {.zero_stage = 1, .optimizer_offload = 0.5}},
      // Of one replica neither: no stage has it.
      {"colossal-ai", "use oo100 or oo0", {.dp = 1, .optimizer_offload = 0.5}},
      {"colossal-ai", "use more TP", {.zero_stage = 1, .parameter_offload = true}},
      {"deepspeed-zero", "hybrid sharding", {.zero_stage = 3, .shard_degree = 2}},
      {"deepspeed-zero", "optimizer state on the host only from ZeRO stage 1", {.optimizer_offload = 1}},
      {"deepspeed-zero",
       "a part of the optimizer state on the host only from ZeRO stage 3",
       {.zero_stage = 2, .optimizer_offload = 0.5}},
      {"deepspeed-zero",
       "parameters on the host only from ZeRO stage 3",
       {.zero_stage = 2, .optimizer_offload = 1, .parameter_offload = true}},
      {"colossal-gemini",
       "parameters on the host only with all of the optimizer state",
       {.zero_stage = 3, .parameter_offload = true}},
      {"deepspeed-zero", "over the 8 replicas always in bf16 beside pipeline stages", {.pp = 2}},
      {"deepspeed-zero", "use ZeRO stage 1", {.tp = 2, .pp = 4}},
      {"megatron-deepspeed-bloom-bf16", "over the 8 replicas always in bf16, and has no ZeRO stage 0", {}},
      {"colossal-ai", "a part of the optimizer state", {.zero_stage = 1, .optimizer_offload = 0.5}},
  }));
}

TEST(StackFeatures, OthersNameWhatTheyLack) {
  expect_named(std::to_array<Case>({
      {"torchtitan", "ZeRO stage 1", {.zero_stage = 1}},
      {"llm-foundry", "tensor parallelism", {.tp = 2, .zero_stage = 3}},
      {"llm-c", "pipeline parallelism", {.pp = 2}},
      {"nanotron", "parameter gather", {.zero_stage = 1, .overlap_param_gather = true}},
      {"nanotron", "selective", {.recompute = RecomputeKind::selective}},
      {"torchtitan",
       "use ax-tp-cp-dp-pp",
       {.tp = 2, .pp = 2, .axis_order = {Axis::tp, Axis::cp, Axis::pp, Axis::dp}}},
      {"llm-c", "optimizer state on the host", {.optimizer_offload = 0.5}},
      {"torchtitan",
       "zero-bubble schedule of one chunk",
       {.pp = 2, .schedule = PipelineSchedule::zero_bubble}},
      {"torchtitan",
       "beside pipeline stages",
       {.pp = 2, .zero_stage = 2, .optimizer_offload = 1, .parameter_offload = true}},
      {"torchtitan",
       "128 micro-batches over pp=5 in 25 equal rounds",
       {.pp = 5, .vp = 2, .schedule = PipelineSchedule::interleaved}},
      {"fsdp1-eager", "of one replica", {.dp = 1, .optimizer_offload = 1, .parameter_offload = true}},
      {"fsdp1-eager",
       "does not add up",
       {.zero_stage = 3, .optimizer_offload = 1, .parameter_offload = true}},
      {"torchtitan",
       "only from ZeRO stage 3",
       {.zero_stage = 2, .optimizer_offload = 1, .parameter_offload = true}},
      {"torchtitan", "leave nosp or tpo out", {.tp = 2, .overlap_tp = true}},
      {"nanotron", "leave nosp or tpo out", {.tp = 2, .overlap_tp = true}},
      {"paddle-llama",
       "hybrid sharding (shard_degree=2) only from ZeRO stage 2",
       {.zero_stage = 1, .shard_degree = 2}},
      {"torchtitan",
       "parameters on the host only with all of the optimizer state",
       {.zero_stage = 3, .optimizer_offload = 0.5, .parameter_offload = true}},
      {"torchtitan",
       "optimizer state on the host only with the parameters",
       {.zero_stage = 3, .optimizer_offload = 1}},
      {"torchtitan", "has no ZeRO stage 0 beside them; use ZeRO stage 2 or 3 with shard_degree=2", {.cp = 2}},
      {"torchtitan-eager", "has no ZeRO stage 0 beside them; use ZeRO stage 2 or 3", {.cp = 2, .dp = 1}},
      {"torchtitan", "whole groups of cp=4 ranks, not over 2", {.cp = 4, .zero_stage = 3, .shard_degree = 2}},
      {"torchtitan", "whole groups of cp=4 ranks, not over 1", {.cp = 4, .zero_stage = 2, .shard_degree = 1}},
  }));
}

}  // namespace
}  // namespace sextant
