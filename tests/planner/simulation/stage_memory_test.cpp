#include "planner/simulation/stage_memory.hpp"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "core/graph/graph_memory.hpp"
#include "core/graph/parameter_layout.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/memory.hpp"
#include "tests/support/measured.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

StackSpec reducing_every_microbatch() {
  StackSpec stack;
  stack.rules.reduce_every_microbatch = true;
  return stack;
}

// Every coefficient in play: scores kept, a second set of logits, logits gathered, a partial recomputation.
StackSpec with_copies() {
  StackSpec stack;
  stack.kernels.attention = AttentionKernel::unfused;
  stack.rules.loss_gathers_logits = true;
  stack.memory.recompute_share = 0.4;
  stack.memory.logits_kept_bytes = 6.9;
  stack.memory.loss_gather_bytes = 24;
  stack.memory.transient_hidden = 14;
  stack.memory.wgrad_placeholder_bytes = 2;
  stack.rules.tied_gradients_apart = true;
  return stack;
}

StackSpec module_by_module() {
  StackSpec stack = reducing_every_microbatch();
  stack.rules.fetch_modules = true;
  return stack;
}

// FSDP2's way with offload.
StackSpec summing_on_host() {
  StackSpec stack = reducing_every_microbatch();
  stack.rules.host_sums_gradients = stack.rules.host_parameters_are_master = true;
  stack.rules.zero2_by_units = true;
  return stack;
}

StackSpec exchanging_in_a_ring() {
  StackSpec stack;
  stack.rules.cp_ring = true;
  return stack;
}

// DeepSpeed's update, and so much beside it that it is mostly the fullest moment.
StackSpec copying_for_the_update() {
  StackSpec stack = module_by_module();
  stack.memory.update_copies = UpdateCopies::flattened;
  stack.memory.wgrad_placeholder_bytes = 2;
  stack.memory.update_frees_gradients = {0, 1};
  stack.memory.update_extra_bytes = 300;
  stack.memory.zero3_update_elements = 5000;
  stack.memory.zero2_sums_apart = stack.memory.bf16_sums_beside_gradients = true;
  stack.memory.part_offload_moves_gradients = true;
  return stack;
}

// Coefficients are of gradients in the format that the stack has of its own.
TEST(StageMemory, GradientsGoByTheirFormat) {
  const auto gradient_bytes = [](StackSpec stack, Dtype gradient) {
    TrainingSpec training;
    training.gradient = gradient;
    return state_bytes(training, ParallelPlan{}, stack).gradient;
  };
  StackSpec main_gradients, fitted, as_parameters;
  fitted.memory.gradient_bytes = 5.25;
  as_parameters.memory.gradient_bytes = 2;
  as_parameters.memory.gradients_as_parameters = true;
  EXPECT_EQ(gradient_bytes(main_gradients, Dtype::fp32), 4);
  EXPECT_EQ(gradient_bytes(main_gradients, Dtype::bf16), 2);
  EXPECT_EQ(gradient_bytes(fitted, Dtype::fp32), 5.25);
  EXPECT_EQ(gradient_bytes(fitted, Dtype::bf16), 3.25);
  EXPECT_EQ(gradient_bytes(as_parameters, Dtype::bf16), 2);
  EXPECT_EQ(gradient_bytes(as_parameters, Dtype::fp32), 4);
}

// DeepSpeed's ZeRO 3 with a ratio: all gradients on the host in their format, and for what the device updates (16 bytes) and the host
// does (16) a copy in fp32 each. FSDP2 below ZeRO 3 keeps gathered parameters between the micro-batches of pipeline stages.
TEST(StageMemory, WhatFrameworksKeepOnTheDevice) {
  const auto presets = std::filesystem::path(SEXTANT_SOURCE_DIR) / "tools/presets";
  const auto state = [&](const char* stack, const std::string& key) {
    TrainingSpec training;
    const StackSpec spec = load_stack(stack, presets);
    training.gradient = own_gradient_format(spec, training.parameter);
    return state_bytes(training, parse_plan_key(key), spec);
  };
  for (const auto& [key, part] : {std::pair{"dp8.z3.oo25", 0.25}, {"dp8.z3.oo75", 0.75}}) {
    const StateBytes s = state("deepspeed-zero", key);
    EXPECT_DOUBLE_EQ(s.gradient + s.optimizer * (1 - part), 16 * (1 - part)) << key;
    EXPECT_DOUBLE_EQ(s.host_optimizer * part + 2 * part, 16 * part + 2) << key;
    EXPECT_EQ(s.update, 0) << key;
  }
  EXPECT_EQ(state("deepspeed-zero", "dp8.z3").gradient, 2);
  EXPECT_EQ(state("deepspeed-zero", "dp8.z3.oo100").host_optimizer, 16);
  const auto resting = [&](const std::string& key) {
    const StateBytes s = state("torchtitan", key);
    return s.parameter + s.gradient + s.optimizer;
  };
  EXPECT_EQ(resting("dp8.z0"), 16);
  EXPECT_EQ(resting("dp4.pp2.z0"), 18);
  EXPECT_EQ(resting("pp2.z2"), 18) << "one replica";
  EXPECT_EQ(resting("dp4.pp2.z2"), 18);
  EXPECT_EQ(resting("dp4.pp2.z3"), 16) << "gathered unit by unit";
}

// One micro-batch whose gradients take the place of parameters: nothing of them in closed form nor in the graph.
TEST(StageMemory, GradientsInTheirParametersAgreeWithTheGraph) {
  StackSpec stack = reducing_every_microbatch();
  stack.memory.gradients_in_parameters = true;
  for (const int batch : {4, 8}) {
    const auto g = lower_tiny("dp4.z3.mbs1", 8, batch, stack);
    const StageMemory memory = estimate_memory(g.model, g.training, g.plan, stack).stages.front();
    EXPECT_EQ(memory.allocated(), walk(g, 0).peak.held.device()) << batch;
    EXPECT_EQ(memory.at_peak[static_cast<std::size_t>(BufferKind::gradient)] == 0, batch == 4);
  }
}

class StageMemoryLattice : public ::testing::TestWithParam<const char*> {};

TEST_P(StageMemoryLattice, AgreesWithTheGraphToTheByte) {
  for (const StackSpec& stack : {StackSpec{}, reducing_every_microbatch(), with_copies(), module_by_module(),
                                 summing_on_host(), exchanging_in_a_ring(), copying_for_the_update()})
    for (const bool tied : {false, true}) {
      const auto g = lower_tiny(GetParam(), 8, 16, stack, true, tied);
      const auto estimate = estimate_memory(g.model, g.training, g.plan, stack);
      for (std::size_t s = 0; s < estimate.stages.size(); ++s) {
        const HeldBytes peak = walk(g, static_cast<int>(s)).peak.held;  // graph_memory_test proves the walk
        EXPECT_EQ(estimate.stages[s].allocated(), peak.device()) << "stage " << s << " tied " << tied;
        for (int k = 0; k < kBufferKinds; ++k) {
          if (static_cast<BufferKind>(k) == BufferKind::host) continue;
          EXPECT_EQ(estimate.stages[s].at_peak[static_cast<std::size_t>(k)], peak[static_cast<BufferKind>(k)])
              << name(static_cast<BufferKind>(k)) << " of stage " << s;
        }
      }
    }
}

// Biases, norms of q and k, and a window, under our own stack and a framework's.
TEST_P(StageMemoryLattice, AgreesForModelsWithMoreFeaturesToTheByte) {
  StackSpec own;
  own.memory.exact_tensors = true;
  ModelSpec model = tiny_model();
  model.normalized_head = model.qkv_bias = model.output_bias = model.mlp_bias = true;
  model.window = 9;
  const ParallelPlan plan = parse_plan_key(GetParam());
  for (const auto& [placement, norm] : {std::pair{NormPlacement::before, QkNorm::head},
                                        {NormPlacement::after, QkNorm::head},
                                        {NormPlacement::after, QkNorm::whole}})
    for (const StackSpec& stack : {StackSpec{}, own, module_by_module(), exchanging_in_a_ring()}) {
      model.norm_placement = placement;
      model.qk_norm = norm;
      const auto g = lower(model, tiny_training(16), flat_links(plan), plan, stack, {true});
      const auto estimate = estimate_memory(g.model, g.training, g.plan, stack);
      const auto plain = estimate_memory(tiny_model(), g.training, g.plan, stack);
      for (std::size_t s = 0; s < estimate.stages.size(); ++s) {
        EXPECT_EQ(estimate.stages[s].allocated(), walk(g, static_cast<int>(s)).peak.held.device())
            << "stage " << s;
      }
      EXPECT_GT(estimate.allocated(), plain.allocated()) << "control";
    }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, StageMemoryLattice,
    ::testing::Values("mbs1", "mbs2.full", "mbs1.sel", "tp2.mbs1", "tp2.mbs1.nosp", "tp2.mbs1.full",
                      "tp4.pp2.mbs1", "pp4.mbs1", "pp4.mbs1.full", "pp4.mbs1.full1", "pp2.mbs1.gpipe",
                      "pp4.mbs1.zb", "tp2.pp2.mbs1.zb", "pp2.dp2.z3.mbs1.zb", "pp2.vp2.mbs1",
                      "tp2.pp2.vp4.mbs1.full", "dp4.z0.mbs1", "dp4.z1.mbs1", "dp4.z1.mbs1.b1K.lb3",
                      "dp4.z1.mbs1.nogr.nopg", "dp4.z2.mbs1", "pp2.dp2.z2.mbs1", "dp4.z3.mbs1",
                      "dp4.z3.mbs1.nopg", "dp4.z3.sd2.mbs1.full", "cp2.dp2.z1.mbs1", "tp2.cp2.mbs1",
                      "cp2.mbs1.full", "tp2.cp2.mbs1.full", "tp2.cp2.mbs1.nosp", "cp2.pp2.mbs1.zb",
                      "tp2.cp4.mbs1.ao2", "dp2.z1.mbs1.oo50", "dp2.z3.mbs1.oo100.po", "mbs1.po", "mbs1.ao2",
                      "pp2.mbs1.ao2.hz2", "pp2.mbs1.ao3.full1", "pp4.mbs1.L1-2-3-2", "pp2.mbs1.L0-8",
                      "dp4.z1.mbs1.sw2-2-2-1", "dp2.z3.mbs1.oo50.po.sw1-3", "pp2.dp2.z2.mbs1.sw3-2"));

// The copies are the peak where they are more than the passes take, and add nothing where they are less.
TEST(StageMemory, TheUpdateIsThePeakWhereItIsTheFullest) {
  const auto peak = [](const char* key, double extra) {
    StackSpec stack;
    stack.memory.update_extra_bytes = extra;
    const auto g = lower_tiny(key, 8, 16, stack);
    return estimate_memory(g.model, g.training, g.plan, stack).stages.front();
  };
  const auto workspace = static_cast<std::size_t>(BufferKind::workspace),
             activation = static_cast<std::size_t>(BufferKind::activation);
  const StageMemory without = peak("dp4.z1.mbs1", 0), little = peak("dp4.z1.mbs1", 1),
                    much = peak("dp4.z1.mbs1", 1000), more = peak("dp4.z1.mbs1", 1500);
  EXPECT_EQ(little.allocated(), without.allocated());
  EXPECT_GT(without.at_peak[activation], 0);
  EXPECT_EQ(much.at_peak[activation], 0);
  EXPECT_GT(much.allocated(), without.allocated());
  // 500 bytes more of each element that a rank owns: a quarter of all.
  const auto g = lower_tiny("dp4.z1.mbs1");
  const std::int64_t owned = parameter_layout(g.model, g.plan, StackRules{}, 0).owned();
  EXPECT_EQ(more.at_peak[workspace] - much.at_peak[workspace], 500 * owned);
  // The reserve is that of the passes, and what the update takes lies in it first.
  EXPECT_EQ(little.fragmented, without.fragmented);
  EXPECT_EQ(more.fragmented.v, 0);
  const double rest = static_cast<double>(much.allocated().v - 1000 * owned),
               fuller = 1.03 * static_cast<double>(without.allocated().v);  // of a reserve of 6 %
  const StageMemory between = peak("dp4.z1.mbs1", (fuller - rest) / static_cast<double>(owned));
  EXPECT_EQ(between.reserved(), without.reserved());
  EXPECT_GT(between.allocated(), without.allocated());
  EXPECT_EQ(peak("dp4.z1.mbs1.oo100", 1000).allocated(), peak("dp4.z1.mbs1.oo100", 0).allocated());
}

TEST(StageMemory, NeverGrowsWithZeroStageTensorParallelOrRecompute) {
  const auto needs = [](const char* key) {
    const ParallelPlan plan = parse_plan_key(key);
    return estimate_memory(tiny_model(), tiny_training(), plan, StackSpec{});
  };
  // Stated communication buffers apart: ZeRO-3's ring of whole units is larger than what it saves at this size.
  const auto without_communication = [&](const char* key) {
    const auto m = needs(key);
    const auto& s = m.stages[static_cast<std::size_t>(m.heaviest)];
    return s.allocated().v - s.at_peak[static_cast<std::size_t>(BufferKind::communication)];
  };
  EXPECT_GE(without_communication("dp4.z0.mbs1"), without_communication("dp4.z1.mbs1"));
  EXPECT_GE(without_communication("dp4.z1.mbs1"), without_communication("dp4.z2.mbs1"));
  EXPECT_GE(without_communication("dp4.z2.mbs1"), without_communication("dp4.z3.mbs1"));
  EXPECT_GT(without_communication("mbs1"), without_communication("tp2.mbs1"));
  EXPECT_GT(without_communication("tp2.mbs1"), without_communication("tp4.mbs1"));
  EXPECT_GT(needs("mbs1").allocated(), needs("mbs1.full").allocated());
}

// A ring of modules holds a layer's largest one, the MLP, and never a layer: 16-bit parameters once, fp32 gradients once,
// and twice where reductions run beside the backward pass.
TEST(StageMemory, ModulesOfALayerAreFetchedOneByOne) {
  ModelSpec model = tiny_model();
  model.vocab_size = 128;  // the head is smaller than an MLP
  const auto ring = [&](const StackSpec& stack, const char* key) {
    const auto m = estimate_memory(model, tiny_training(), parse_plan_key(key), stack);
    return m.stages[0].at_peak[static_cast<std::size_t>(BufferKind::communication)];
  };
  constexpr std::int64_t padding = 256;  // 64 elements for each of four shards
  const std::int64_t mlp = 3 * std::int64_t{model.hidden} * model.ffn_hidden + model.hidden;
  for (const auto& [key, gradients] : {std::pair{"dp4.z3.mbs1.nopg", 2}, {"dp4.z3.mbs1.nogr.nopg", 1}}) {
    EXPECT_GE(ring(module_by_module(), key), (2 + gradients * 4) * mlp);
    EXPECT_LE(ring(module_by_module(), key), (2 + gradients * 4) * (mlp + padding));
    EXPECT_GT(ring(reducing_every_microbatch(), key), ring(module_by_module(), key));
  }
}

// Gradients that are reduced in every micro-batch make room for those of the next bucket, whether the backward pass goes on or
// waits; those that are reduced after the last one are all held.
TEST(StageMemory, AReductionThatIsWaitedForStillMakesRoom) {
  const auto held = [](const StackSpec& stack, const char* key) {
    const auto m = estimate_memory(tiny_model(), tiny_training(), parse_plan_key(key), stack).stages[0];
    return m.at_peak[static_cast<std::size_t>(BufferKind::communication)];
  };
  const StackSpec every = reducing_every_microbatch();
  EXPECT_EQ(held(every, "dp4.z2.mbs1.b2K.nogr.nopg"), held(every, "dp4.z2.mbs1.b2K.nopg"));
  EXPECT_LT(held(every, "dp4.z2.mbs1.b2K.nogr.nopg"), held(every, "dp4.z2.mbs1.b2M.nogr.nopg"));
  const auto buckets = [](const StackSpec& stack, const char* key) {
    return parameter_layout(tiny_model(), parse_plan_key(key), stack.rules, 0).buckets.size();
  };
  EXPECT_EQ(buckets(every, "dp4.z2.mbs1.b2K.nogr"), buckets(every, "dp4.z2.mbs1.b2K"));
  EXPECT_GT(buckets(every, "dp4.z1.mbs1.b2K"), 1);
  EXPECT_EQ(buckets(every, "dp4.z1.mbs1.b2K.nogr"), 1) << "at the end there is nothing to make room for";
}

// Negative control: one byte less in every activation buffer of a stage must show.
TEST(StageMemory, TheComparisonSeesAByteTooFew) {
  auto g = lower_tiny("pp4.mbs1");
  const Bytes whole = walk(g, 0).peak.held.device();
  for (Buffer& buffer : g.buffers)
    if (buffer.kind == BufferKind::activation && buffer.stage == 0) --buffer.bytes;
  EXPECT_LT(walk(g, 0).peak.held.device(), whole);
}

TEST(StageMemory, TheFirstStageOfAPipelineHoldsMostMicrobatches) {
  const auto m = estimate_memory(tiny_model(), tiny_training(), parse_plan_key("pp4.mbs1"), StackSpec{});
  const auto activations = [&](std::size_t s) {
    return m.stages[s].at_peak[static_cast<std::size_t>(BufferKind::activation)];
  };
  EXPECT_GT(activations(0), activations(1));
  EXPECT_GT(activations(1), activations(2));
}

// Peaks of torch's allocator that MooreThreads/SimuMax published of Megatron-LM with Transformer Engine 2.11 on 8 B200 (docs/b200,
// release 1.2): twelve layers of Llama-3-70B, sequences of 4096 tokens. They are counted, not fitted.
TEST(StageMemory, HoldsWhatMegatronCoreWasSeenToHold) {
  ModelSpec model = load_model("llama-3.1-70b", test::preset_dir());
  model.n_layers = 12;
  TrainingSpec training;
  training.seq_len = 4096;
  training.global_batch = 16;
  const StackSpec counted = load_stack("megatron-core", test::preset_dir());
  const auto off = [&](const char* key, double measured_GiB, const StackSpec& stack) {
    return std::abs(
        gib(estimate_memory(model, training, parse_plan_key(key), stack).allocated()) / measured_GiB - 1);
  };
  const std::pair<const char*, double> published[] = {{"tp1.pp2.dp4.z1.mbs1", 66.55},
                                                      {"tp2.dp4.z1.mbs1", 60.68},
                                                      {"tp4.dp2.z1.mbs1", 39.07},
                                                      {"tp8.dp1.z1.mbs1", 28.29}};
  StackSpec without_placeholders = counted, without_copies = counted;
  without_placeholders.memory.wgrad_placeholder_bytes = 0;
  without_copies.memory.saved_hidden = without_copies.memory.saved_ffn = 2;
  for (const auto& [key, measured_GiB] : published) {
    SCOPED_TRACE(key);
    EXPECT_LE(off(key, measured_GiB, counted), 0.01);
    EXPECT_GT(off(key, measured_GiB, without_placeholders), off(key, measured_GiB, counted)) << "control";
    EXPECT_GT(off(key, measured_GiB, without_copies), off(key, measured_GiB, counted) + 0.005) << "control";
  }
}

// Products in fp8 keep less; a stack that does not say so keeps as much as in 16 bits.
TEST(StageMemory, InputsInFp8AreKeptInFp8) {
  const auto held = [](Dtype compute, bool fp8_inputs) {
    TrainingSpec training = tiny_training();
    training.compute = compute;
    StackSpec stack;
    stack.memory.saves_fp8_inputs = fp8_inputs;
    return activation_bytes(tiny_model(), training, parse_plan_key("dp1.mbs1"), stack);
  };
  const ModelSpec m = tiny_model();
  const ActivationBytes bf16 = held(Dtype::bf16, true), fp8 = held(Dtype::fp8, true);
  const std::int64_t tokens = tiny_training().seq_len, heads = std::int64_t{m.n_heads} * m.head_dim;
  EXPECT_EQ(held(Dtype::bf16, false).saved_mlp, bf16.saved_mlp);
  EXPECT_EQ(held(Dtype::fp8, false).saved_mlp, bf16.saved_mlp);
  EXPECT_EQ(bf16.saved_attention - fp8.saved_attention,
            tokens * (m.hidden - heads));  // its output is kept twice
  EXPECT_EQ(bf16.saved_mlp - fp8.saved_mlp, tokens * (m.hidden + m.ffn_hidden));
  // A stack that says it keeps none of them keeps no less in fp8.
  StackSpec nothing;
  nothing.memory.saved_hidden = nothing.memory.saved_ffn = nothing.memory.saved_tp = 0;
  nothing.kernels.norm_fused = nothing.memory.saves_fp8_inputs = true;
  TrainingSpec training = tiny_training();
  training.compute = Dtype::fp8;
  EXPECT_EQ(activation_bytes(m, training, parse_plan_key("dp1.mbs1"), nothing).saved_mlp, 0);
}

// Buffers of communication come from the same allocator as all others: where ZeRO 3 needs more of them than ZeRO 2 and
// saves nothing beside (one replica), the reserve grows by its share of them, and by nothing else.
TEST(StageMemory, TheReserveIsAShareOfBuffersOfCommunicationToo) {
  constexpr double kShare = 0.06;
  StackSpec stack;
  stack.memory.fragmentation = 1 + kShare;
  const auto of = [&](const char* key) {
    return estimate_memory(tiny_model(), tiny_training(), parse_plan_key(key), stack).stages.front();
  };
  const auto communication = [](const StageMemory& m) {
    return static_cast<double>(m.at_peak[static_cast<std::size_t>(BufferKind::communication)]);
  };
  const auto apart = [&](const StageMemory& m, double factor) {
    return static_cast<double>(m.reserved().v) - factor * communication(m);
  };
  constexpr double kNorms =
      200;  // bytes: units have a norm each, as buckets have, and there are more of them
  const StageMemory two = of("dp1.z2.mbs1"), three = of("dp1.z3.mbs1");
  ASSERT_GT(communication(three), communication(two));
  EXPECT_NEAR(static_cast<double>(three.fragmented.v), kShare * static_cast<double>(three.allocated().v), 1);
  EXPECT_LE(apart(three, 1 + kShare), apart(two, 1 + kShare) + kNorms);
  EXPECT_NEAR(apart(three, 1) - apart(two, 1), kShare * (communication(three) - communication(two)), kNorms);
  EXPECT_GT(apart(three, 1) - apart(two, 1), 10 * kNorms);  // what is to be explained
}

}  // namespace
}  // namespace sextant
