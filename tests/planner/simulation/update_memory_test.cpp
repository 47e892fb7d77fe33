// What each framework's optimizer holds while it updates, which is the peak of a step with few activations.
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>

#include "core/graph/parameter_layout.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/stack_spec.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {
namespace {

// Bytes of state of a parameter over d = 8 replicas at the fullest moment of the update, which is the step's where activations are
// few. DeepSpeed publishes 2 + 18/d (stage_1_and_2.py, estimate_zero2_model_states_mem_needs) and 18/d (stage 3): those without the
// flat copy in 16 bit, which is there while the one in fp32 is made.
// NOLINTNEXTLINE(readability-function-size): a table of frameworks
TEST(UpdateMemory, BytesPerParameterByFramework) {
  const auto presets = std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
  const ModelSpec model = load_model("llama-2-7b", presets);
  struct Sharding {
    int zero = 0, dp = 8, pp = 1;
    Dtype parameter = Dtype::bf16;
    std::optional<Dtype> gradient = std::nullopt;
    int microbatches = 1;
    double offload = 0;
  };
  const auto peak_of = [&](const StackSpec& s, const Sharding& l) {
    TrainingSpec training;
    training.compute = training.parameter = l.parameter;
    training.gradient = l.gradient.value_or(own_gradient_format(s, l.parameter));
    training.seq_len = 64;
    training.global_batch = l.dp * l.microbatches;
    ParallelPlan plan;
    plan.dp = l.dp;
    plan.pp = l.pp;
    plan.zero_stage = l.zero;
    plan.recompute.kind = RecomputeKind::full;
    plan.optimizer_offload = l.offload;
    EXPECT_EQ(refuses(s, plan, model, training).value_or(Rejection{}).text.find("ZeRO"), std::string::npos)
        << s.name << l.zero;
    // Of the heaviest stage, by its share of the model's parameters.
    const MemoryEstimate e = estimate_memory(model, training, plan, s);
    return static_cast<double>(e.allocated().v) /
           static_cast<double>(parameter_layout(model, plan, s.rules, e.heaviest).elements);
  };
  const auto peak = [&](const char* stack, const Sharding& l) {
    return peak_of(load_stack(stack, presets), l);
  };
  constexpr double d = 8;
  struct Published {
    const char* stack;
    Sharding layout;
    double bytes;
  };
  const Published cases[] = {
      // 14 rest; gradients, in fp32 one by one, and flat (fused_optimizer.py 288-313).
      {"deepspeed-zero", {.zero = 0}, 14 + 2 + 4 + 4},
      {"deepspeed-zero", {.zero = 0, .parameter = Dtype::fp16}, 24},
      {"deepspeed-zero", {.zero = 1, .dp = 1}, 2 + 20},
      {"deepspeed-zero", {.zero = 1, .dp = 2}, 2 + 20 / 2.0},
      {"deepspeed-zero",
       {.zero = 1},
       4 + 12 / d},  // at the end of the backward pass: others' gradients are there still
      {"deepspeed-zero", {.zero = 2, .dp = 2}, 2 + 20 / 2.0},
      {"deepspeed-zero", {.zero = 3, .dp = 1}, 16 + 6 / 6.738},  // a billion at a time
      {"deepspeed-zero", {.zero = 3}, 22 / d},
      // BF16_Optimizer: sums beside gradients, whose partition is converted.
      {"deepspeed-zero", {.zero = 0, .dp = 1, .pp = 2}, 2 + 2 + 2 + 12 + 4},
      {"deepspeed-zero", {.zero = 1, .dp = 8, .gradient = Dtype::fp32}, 2 + 2 + 4 + 12 / d},
      // fp32: no wrapper without ZeRO; with it a master copy all the same, and one flat gradient.
      {"deepspeed-zero", {.zero = 0, .parameter = Dtype::fp32}, 16},
      {"deepspeed-zero", {.zero = 1, .dp = 1, .parameter = Dtype::fp32}, 4 + 4 + 12 + 4},
      {"megatron-deepspeed-zero3", {.zero = 0, .parameter = Dtype::fp16}, 24},
      {"megatron-deepspeed-bloom", {.zero = 1, .dp = 2, .parameter = Dtype::fp16}, 2 + 20 / 2.0},
      {"megatron-deepspeed-bloom-bf16", {.zero = 1, .dp = 1}, 20},
      {"megatron-core", {.zero = 0}, 18},
      {"megatron-core", {.zero = 0, .gradient = Dtype::bf16}, 16 + 4},
      {"nemo-dgxc", {.zero = 1}, 4 + 16 / d},
      // HybridDeviceOptimizer: first of whole parameters, of which the device's part is copied in fp32, then of the shards; of one
      // shard the update is fuller, with a gradient in fp32 where the buffer's is not.
      {"megatron-core", {.zero = 1, .offload = 1}, 6},
      {"megatron-core", {.zero = 1, .offload = 0.5}, 6 + 0.5 * (4 + 4 / d)},
      {"megatron-core", {.zero = 1, .dp = 1, .offload = 0.5}, 6 + 0.5 * 12},
      {"nemo-dgxc", {.zero = 1, .dp = 1, .offload = 0.5}, 4 + 0.5 * 16},
      {"nemo-dgxc", {.zero = 1, .offload = 0.5}, 4 + 0.5 * (4 + 4 / d)},
      {"megatron-lm-2021", {.zero = 0, .parameter = Dtype::fp16, .gradient = Dtype::fp16}, 16 + 4},
      {"aleph-alpha", {.zero = 0}, 14 + 4},
      {"aleph-alpha", {.zero = 1, .dp = 2}, 2 + 18 / 2.0},
      {"colossal-ai", {.zero = 0}, 14 + 4},
      {"colossal-ai", {.zero = 1}, 4 + 16 / d},
      // A gradient takes its parameter's place, with several micro-batches one of its own (reuse_fp16_chunk).
      {"colossal-gemini", {.zero = 3, .dp = 1}, 14},
      {"colossal-gemini", {.zero = 3, .dp = 1, .microbatches = 2}, 16},
      {"nanotron", {.zero = 0, .gradient = Dtype::bf16}, 18},
      {"torchtitan", {.zero = 0}, 16},
      {"torchtitan", {.zero = 0, .gradient = Dtype::bf16}, 16},  // reduced in 16 bit, cast to fp32
      {"fsdp1-eager", {.zero = 0, .gradient = Dtype::bf16}, 16 + 4},
      // Parameters stay gathered between micro-batches.
      {"torchtitan", {.zero = 0, .dp = 1, .pp = 2}, 18},
      {"fsdp1-eager", {.zero = 0}, 16 + 4},
      {"modalities", {.zero = 3}, 20 / d},
      {"llm-foundry", {.zero = 0}, 16}};
  for (const Published& c : cases)
    EXPECT_NEAR(peak(c.stack, c.layout), c.bytes, 0.06 * c.bytes)
        << c.stack << " ZeRO " << c.layout.zero << " dp " << c.layout.dp << " pp " << c.layout.pp;
  // Micro-batches beyond the first are reduced into a partition of their own, which the update no longer has.
  EXPECT_NEAR(peak("deepspeed-zero", {.zero = 2, .dp = 2, .microbatches = 4}), 2 + 20 / 2.0, 0.5);

  // Controls: without the rules that say so.
  StackSpec core = load_stack("megatron-core", presets), titan = load_stack("torchtitan", presets);
  core.memory.offload_from_whole = titan.memory.sharded_gradients_fp32 = false;
  EXPECT_NEAR(peak_of(core, {.zero = 1, .offload = 0.5}), 6 + 0.5 * 12 / d, 0.2);
  EXPECT_NEAR(peak_of(titan, {.zero = 0, .gradient = Dtype::bf16}), 14, 0.2);
}

// FSDP1 keeps the fp32 gradient shard on the device until the backward pass ends, beside its copy on the host; FSDP2 does not.
TEST(UpdateMemory, GradientsOnTheDeviceBesideThoseOnTheHost) {
  const auto presets = std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
  const ModelSpec model = load_model("llama-2-7b", presets);
  TrainingSpec training;
  training.seq_len = 64;
  training.global_batch = 8;
  ParallelPlan plan;
  plan.dp = 8;
  plan.zero_stage = 3;
  plan.recompute.kind = RecomputeKind::full;
  plan.optimizer_offload = 1;
  plan.parameter_offload = true;
  const auto gradients = [&](const char* stack) {
    const StackSpec s = load_stack(stack, presets);
    const MemoryEstimate e = estimate_memory(model, training, plan, s);
    const auto bytes = e.stages.front().at_peak[static_cast<std::size_t>(BufferKind::gradient)];
    return static_cast<double>(bytes) /
           static_cast<double>(parameter_layout(model, plan, s.rules, 0).elements);
  };
  EXPECT_NEAR(gradients("fsdp1-eager"), 4 / 8.0, 0.01);
  EXPECT_EQ(gradients("torchtitan-eager"), 0);
}

}  // namespace
}  // namespace sextant
