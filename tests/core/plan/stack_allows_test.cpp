// What a framework does run, near what it refuses, is not refused.
#include <gtest/gtest.h>

#include "core/plan/plan_key.hpp"
#include "core/plan/stack_spec.hpp"
#include "tests/core/plan/refusal.hpp"

namespace sextant {
namespace {

// The embedded runtime acts on every field of a plan (negative control of stack_test.cpp).
TEST(StackRefusals, OwnRuntimeDoesEverything) {
  ParallelPlan p = plain();
  p.tp = 2;
  p.cp = 2;
  p.pp = 3;
  p.dp = 4;
  p.sequence_parallel = true;
  p.zero_stage = 3;
  p.shard_degree = 4;
  p.schedule = PipelineSchedule::zero_bubble;
  p.recompute = {RecomputeKind::full, 2};
  p.optimizer_offload = 0.5;
  p.parameter_offload = true;
  p.activation_offload = 1;
  p.bucket_elements = 1 << 20;
  p.last_bucket_split = 4;
  p.overlap_grad_reduce = p.overlap_param_gather = true;
  EXPECT_EQ(refusal("sextant", p), "");
}

TEST(StackRefusals, OverlapOfNothingIsNotRefused) {
  ParallelPlan p;
  p.pp = 8;  // one replica: no gradient reduction to overlap
  EXPECT_EQ(refusal("aleph-alpha", p), "");
}

// What the framework does run, near what it does not (negative control of stack_test.cpp).
TEST(StackRefusals, NothingNearIsRefused) {
  const std::pair<const char*, const char*> runs[] = {
      {"torchtitan", "tp2.dp4.z3.mbs1"},
      {"torchtitan", "tp2.dp4.z3.mbs1.nosp"},
      {"torchtitan", "pp2.dp4.z2.mbs1"},
      {"torchtitan", "tp2.dp4.z3.mbs1.tpo"},
      {"torchtitan", "dp8.z3.mbs1.oo100.po"},
      {"torchtitan", "dp1.z3.mbs1.oo100.po"},
      {"torchtitan", "dp8.z2.mbs1.sd4"},
      {"torchtitan", "cp2.dp4.z3.mbs1.sd4"},
      {"torchtitan", "cp2.dp4.z2.mbs1"},
      {"torchtitan", "cp2.dp1.z3.mbs1"},
      {"torchtitan", "dp8.z0.mbs1"},
      {"megatron-core", "cp2.dp4.z0.mbs1"},
      {"colossal-ai", "cp2.dp4.z0.mbs1"},
      {"smp-v2", "cp2.dp4.z0.mbs1"},
      {"deepspeed-zero", "pp2.dp1.z0.mbs1"},  // one replica: nothing to shard
      {"deepspeed-zero", "pp2.dp4.z1.mbs1"},
      {"deepspeed-zero", "dp8.z0.mbs1"},
      {"megatron-deepspeed-bloom", "pp2.dp4.z0.mbs1"},
      {"megatron-core", "tp2.dp4.z1.mbs1.tpo"},
      {"megatron-core", "tp2.dp4.z1.mbs1.nosp"},
      {"megatron-core", "dp8.z1.mbs1.oo50"},
      {"deepspeed-zero", "dp8.z3.mbs1.oo50.po"},
      {"paddle-llama", "dp8.z2.mbs1.sd2"},
      {"deepspeed-zero", "dp8.z1.mbs1.oo100"},
      {"deepspeed-zero", "dp8.z3.mbs1.po"},
      {"deepspeed-zero", "tp8.mbs1.oo50.po"},  // one replica: no ZeRO stage to ask for
      {"colossal-gemini", "dp8.z3.mbs1.oo50"},
      {"colossal-gemini", "dp8.z3.mbs1.oo100.po"},
      {"sextant", "dp8.z0.mbs1.oo50.po"},
      // Fewer than two rounds of pp are one.
      {"torchtitan", "pp5.vp2.dp128.z0.mbs1"},
      {"megatron-lm-2024", "pp4.vp2.dp8.z0.mbs1"},
      {"megatron-core", "pp5.vp2.dp8.z0.mbs1"},
      {"sextant", "pp5.vp2.dp8.z0.mbs1"},
  };
  for (const auto& [stack, key] : runs) {
    const StackSpec spec = load_stack(stack, preset_dir());
    EXPECT_EQ(refusal(stack, fill_plan_key(key, spec, parse_plan_key(key).world()).plan), "")
        << stack << " " << key;
  }
}

// What a key leaves out is what the stack can do, so that a short key is never refused for it.
TEST(StackRefusals, WhatIsAlwaysShardedIsFilledIn) {
  const auto filled = [](const char* stack, const char* key, Dtype parameter = Dtype::bf16) {
    return fill_plan_key(key, load_stack(stack, preset_dir()), 16, parameter);
  };
  EXPECT_EQ(filled("torchtitan", "cp2.mbs1").plan.zero_stage, 3);
  EXPECT_EQ(filled("torchtitan", "cp2.pp2.mbs1").plan.zero_stage, 2);
  EXPECT_EQ(filled("torchtitan", "cp2.z2.mbs1").plan.zero_stage, 2);
  EXPECT_EQ(filled("torchtitan", "mbs1").plan.zero_stage, 0);
  EXPECT_EQ(filled("torchtitan", "cp2.mbs1").notes,
            (std::vector<std::string>{"not stated in the plan key, so torchtitan's default: ZeRO 3 (z3)"}));
  EXPECT_EQ(filled("megatron-core", "cp2.mbs1").plan.zero_stage, 0);
  EXPECT_EQ(filled("deepspeed-zero", "pp2.mbs1").plan.zero_stage, 1);
  EXPECT_EQ(filled("deepspeed-zero", "pp16.mbs1").plan.zero_stage, 0);
  EXPECT_EQ(filled("deepspeed-zero", "pp2.mbs1", Dtype::fp16).plan.zero_stage, 0);
  // In fp16 its optimizer shards nothing at stage 0.
  TrainingSpec fp16;
  fp16.parameter = fp16.compute = fp16.gradient = Dtype::fp16;
  ParallelPlan stages = plain();
  stages.pp = 2;
  EXPECT_EQ(refusal("deepspeed-zero", stages, fp16), "");
  EXPECT_NE(refusal("deepspeed-zero", stages), "");
}

TEST(StackRefusals, NoStackRefusesAShortKey) {
  for (const auto& name : stack_names(preset_dir())) {
    const StackSpec stack = load_stack(name, preset_dir());
    const std::string key = stack.can.tensor_parallel ? "tp2.mbs1" : "mbs1";
    const FilledPlan filled = fill_plan_key(key, stack, 8);
    EXPECT_EQ(filled.plan.world(), 8) << name;
    EXPECT_EQ(refusal(name, filled.plan), "") << name;
    // And the full key that is then printed says the same.
    EXPECT_EQ(fill_plan_key(plan_key(filled.plan), stack, 8).plan, filled.plan) << name;
  }
  const FilledPlan old = fill_plan_key("tp2.mbs1", load_stack("megatron-lm-2021", preset_dir()), 8);
  EXPECT_EQ(old.notes,
            (std::vector<std::string>{
                "not stated in the plan key, so megatron-lm-2021's default: no sequence parallelism (nosp), "
                "gradient reduction not overlapped (nogr)"}));
  EXPECT_TRUE(fill_plan_key("tp2.mbs1", load_stack("megatron-core", preset_dir()), 8).notes.empty());
  // What the key states is not changed.
  EXPECT_NE(refusal("megatron-lm-2021",
                    fill_plan_key("tp2.sp.z1", load_stack("megatron-lm-2021", preset_dir()), 8).plan),
            "");
}

}  // namespace
}  // namespace sextant
