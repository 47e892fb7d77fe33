#include "cost_models/memory.hpp"

#include <algorithm>
#include <cmath>

#include "core/graph/block_tensors.hpp"

namespace sextant {
namespace {

std::int64_t bytes(double x) { return static_cast<std::int64_t>(std::llround(x)); }

double score_bytes(const StackSpec& stack) {
  switch (stack.kernels.attention) {
    case AttentionKernel::unfused:
      return stack.memory.attention_scores_eager;
    case AttentionKernel::fused_softmax:
      return stack.memory.attention_scores;
    default:
      return 0;
  }
}

// Of what tensor parallelism gathers for each layer, the share held at the peak. `node`: ranks of one, 0 where all of it is.
// Seen in published peaks of nanotron, not counted: of the pp micro-batches that wait in a pipeline one holds nothing, and groups
// beyond a node with a few replicas neither.
double kept_gathers(const ParallelPlan& plan, int node) {
  if (node == 0) return 1.0;
  if (plan.pp > 1) return (plan.pp - 2.0) / (plan.pp - 1.0);
  return plan.tp > node && plan.dp > 1 && plan.dp < node ? 0.0 : 1.0;
}

// One weight of each shape of a layer's four GEMMs (those of q, k and v are one, as are gate and up).
double elements_of_shapes(const ModelSpec& m, const LocalShape& local) {
  const double heads = static_cast<double>(local.heads) * m.head_dim,
               kv = static_cast<double>(local.kv_heads) * m.head_dim;
  return m.hidden * (2.0 * heads + 2.0 * kv + (m.gated_mlp ? 3.0 : 2.0) * local.ffn);
}

// Tensor by tensor, as our own runtime places them.
ActivationBytes exact_bytes(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
                            const StackSpec& stack) {
  const LocalShape local = local_shape(m, plan.tp, stack.rules.vocab_multiple);
  const bool split = plan.schedule == PipelineSchedule::zero_bubble;
  BlockWork w = block_extents(m, training, plan, local, stack.rules);
  w.recompute_core = plan.recompute.kind == RecomputeKind::selective;
  const auto as = [&](BlockKind kind, Pass pass = Pass::backward) {
    BlockWork one = w;
    one.kind = kind;
    one.pass = pass;
    return one;
  };
  const BlockWork attention = as(BlockKind::attention), mlp = as(BlockKind::mlp), head = as(BlockKind::head);
  const std::int64_t row = std::int64_t{m.hidden} * size_bytes(kept_as(training.compute));
  const auto statistic = static_cast<std::int64_t>(training.compute == Dtype::fp64 ? 8 : 4);
  ActivationBytes b;
  b.stream = local_tokens(w) * row;
  b.gathered = w.tokens() * row;
  b.saved_attention = b.again_attention = saved_bytes(attention).v;
  b.saved_mlp = b.again_mlp = saved_bytes(mlp).v;
  b.ring_attention = b.saved_attention;
  b.ring_mlp = b.saved_mlp;
  b.saved_input = b.stream;
  b.saved_head = total_bytes(norm_tensors(head)).v;
  b.qkv_gradient = total_bytes(passed_tensors(attention)).v;
  b.deferred_attention = total_bytes(deferred_tensors(attention)).v;
  b.deferred_mlp = total_bytes(deferred_tensors(mlp)).v;
  const std::int64_t kv_columns = 2 * std::int64_t{local.kv_heads} * m.head_dim;
  if (plan.cp > 1)
    b.kv_gathered = std::int64_t{w.batch} * w.seq_k * kv_columns * size_bytes(kept_as(training.compute));
  b.logits = total_bytes(loss_tensors(as(BlockKind::head, split ? Pass::backward_input : Pass::backward))).v;
  b.logits_kept = total_bytes(workspace_tensors(head, head_chunk(head))).v;
  const Pass back = split ? Pass::backward_input : Pass::backward;
  b.transient = std::max({total_bytes(workspace_tensors(as(BlockKind::attention, back), 0)).v,
                          total_bytes(workspace_tensors(as(BlockKind::mlp, Pass::forward), 0)).v});
  b.loss_stats = plan.tp > 1 ? 3 * statistic * w.tokens() * plan.tp : 0;
  b.qk_sums = norms_over_ranks(w) ? 2 * statistic * w.tokens() : 0;
  return b;
}

// Sizes that every formula below reads: of one rank, and one micro-batch.
struct LayerSizes {
  LayerSizes(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
             const StackSpec& stack)
      : local(local_shape(m, plan.tp, stack.rules.vocab_multiple)),
        element(training.compute == Dtype::fp32 || training.compute == Dtype::fp64
                    ? size_bytes(training.compute)
                    : 2.0),
        tokens(static_cast<double>(plan.micro_batch) * training.seq_len / plan.cp),
        hidden(m.hidden),
        split(plan.sequence_parallel ? static_cast<double>(plan.tp) : 1.0),
        heads(static_cast<double>(local.heads) * m.head_dim),
        kv(static_cast<double>(local.kv_heads) * m.head_dim) {}

  LocalShape local;
  double element;  // bytes; fp8 GEMMs still keep 16-bit activations
  double tokens, hidden;
  double split;  // what SP divides
  double heads, kv;
};

// What the two half-layers save between forward and backward.
void add_saved_activations(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
                           const StackSpec& stack, const LayerSizes& size, ActivationBytes& b) {
  const StackMemory& k = stack.memory;
  const double h = size.hidden, split = size.split, heads = size.heads, kv = size.kv;
  const double scale = size.element / 2.0;  // the coefficients count bytes of 16-bit training
  const bool selective = plan.recompute.kind == RecomputeKind::selective,
             by_operation = selective && stack.rules.selective_by_operation;
  // In fp8 a norm's output is kept by the GEMM that it goes to, of one byte instead of two.
  const bool fp8_inputs = training.compute == Dtype::fp8 && k.saves_fp8_inputs && !by_operation;
  const double norm = std::max(0.0, k.saved_hidden - (fp8_inputs ? 1.0 : 0.0)) * h / split +
                      (stack.kernels.norm_fused || by_operation ? 0.0 : k.saved_norm * h / split);
  const double tp_kept = kept_gathers(plan, k.async_tp_ranks);
  const double tp_copy =
      plan.tp > 1 && !by_operation ? (tp_kept * k.saved_tp + k.saved_tp_shard / split) * h / 2.0 : 0.0;
  // The score matrix, kept by kernels without online softmax unless the core is recomputed.
  const double scores = selective && !by_operation
                            ? 0.0
                            : score_bytes(stack) * size.local.heads * static_cast<double>(training.seq_len);
  // What norms of q and k read, and eagerly a copy in fp32 and the quotient, as of the norms of the stream.
  const double qk_norms =
      m.qk_norm == QkNorm::none ? 0.0 : (stack.kernels.norm_fused ? 2.0 : 8.0) * (heads + kv);
  b.saved_attention = bytes(scale * size.tokens *
                            (norm + tp_copy + 2.0 * (heads + (by_operation ? 1.0 : 2.0) * kv) +
                             (fp8_inputs ? 3.0 : 2.0) * heads +
                             (by_operation ? 0.0 : k.saved_rope * (heads + kv) + qk_norms) + scores));
  // By operation only the first GEMM of the MLP is kept.
  const double of_code =
      std::max(0.0, (m.gated_mlp ? k.saved_ffn : std::min(2.0, k.saved_ffn)) - (fp8_inputs ? 0.5 : 0.0));
  const double saved_ffn = by_operation ? std::min(1.0, of_code) : of_code;
  // The policy keeps every second GEMM of a layer, its last (the MLP's output) among them. No gradient needs that one: compiled
  // blocks drop it.
  const double output = by_operation && stack.kernels.blocks == Blocks::compiled ? 0.0 : norm;
  b.saved_mlp = bytes(scale * size.tokens * (output + tp_copy + 2.0 * saved_ffn * size.local.ffn));
}

void add_head_activations(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
                          const StackSpec& stack, const LayerSizes& size, ActivationBytes& b) {
  const StackMemory& k = stack.memory;
  const double T = size.tokens, h = size.hidden, t = plan.tp;
  const double gathered_logits =
      stack.rules.loss_gathers_logits && plan.tp > 1 ? k.loss_gather_bytes * t : 0.0;
  const double local_logits = k.logits_bytes * (plan.tp > 1 ? k.logits_tp_factor : 1.0);
  b.logits = bytes(((local_logits + gathered_logits) * size.local.vocab + k.loss_hidden_bytes * h) * T);
  b.logits_kept =
      bytes(size.local.vocab * ((microbatches(plan, training) > 1 ? k.logits_kept_bytes * T : 0.0) +
                                k.wgrad_placeholder_bytes * h));
  b.wgrad_placeholders = bytes(k.wgrad_placeholder_bytes * elements_of_shapes(m, size.local));
  b.loss_stats = plan.tp > 1 ? bytes(3.0 * 4.0 * T * t) : 0;
}

}  // namespace

ActivationBytes activation_bytes(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
                                 const StackSpec& stack) {
  const StackMemory& k = stack.memory;
  if (k.exact_tensors) return exact_bytes(m, training, plan, stack);
  const LayerSizes size(m, training, plan, stack);
  const double element = size.element, T = size.tokens, h = size.hidden, split = size.split;
  const double scale = element / 2.0;
  ActivationBytes b;
  b.stream = bytes(element * T * h / split);
  b.gathered = bytes(element * T * h);
  add_saved_activations(m, training, plan, stack, size, b);
  // Stacks that offload the inputs of recomputed layers keep none of them; their copies hide behind whole layers and
  // are not priced.
  const bool inputs_on_host = plan.activation_offload > 0 && stack.can.activation_offload_needs_recompute;
  (inputs_on_host ? b.host_input : b.saved_input) = bytes(scale * T * k.full_recompute_hidden * h / split);
  const bool inputs_alone =
      inputs_on_host && plan.recompute.kind == RecomputeKind::full && plan.recompute.layers < 0;
  b.ring_attention = inputs_alone ? b.host_input : b.saved_attention;
  b.ring_mlp = inputs_alone ? 0 : b.saved_mlp;
  b.saved_head = bytes(scale * T * k.saved_hidden * h / split);
  b.qkv_gradient = bytes(element * T * (size.heads + 2.0 * size.kv));
  b.deferred_attention = b.deferred_mlp = b.gathered;
  b.kv_gathered = plan.cp > 1 ? bytes(element * T * plan.cp * 2.0 * size.kv) : 0;
  b.again_attention = bytes(k.recompute_share * static_cast<double>(b.saved_attention));
  b.again_mlp = bytes(k.recompute_share * static_cast<double>(b.saved_mlp));
  add_head_activations(m, training, plan, stack, size, b);
  b.transient = (plan.tp > 1 ? bytes(k.transient_hidden * T * h) : 0) + b.wgrad_placeholders;
  b.qk_sums = norms_over_ranks(m.qk_norm, plan.tp) ? bytes(2.0 * 4.0 * T) : 0;
  return b;
}

namespace {

// DeepSpeed's own optimizer for bf16 (runtime/engine.py, _do_optimizer_sanity_check).
bool has_bf16_optimizer(const TrainingSpec& training, const ParallelPlan& plan) {
  if (training.parameter != Dtype::bf16 || plan.optimizer_offload > 0) return false;
  return (plan.zero_stage == 0 && plan.pp > 1) ||
         (plan.zero_stage == 1 && size_bytes(training.gradient) >= 4);
}

// Copies of its gradient that an element has while the device updates it.
double update_copies(const TrainingSpec& training, const ParallelPlan& plan, const StackMemory& memory) {
  const double own = size_bytes(training.gradient), converted = own < 4 ? 4.0 : 0.0;
  if (memory.update_copies == UpdateCopies::none) return 0;
  if (memory.update_copies == UpdateCopies::converted ||
      (memory.bf16_sums_beside_gradients && has_bf16_optimizer(training, plan)))
    return converted;
  return plan.zero_stage == 0 ? 2 * converted : own + converted;
}

// An optimizer that is made over whole parameters before it is over the shards: what that leaves behind, and what it takes at once
// while there is no optimizer state yet. Per owned element. Of fp32 parameters on the device there are no copies.
void add_whole_copies(const TrainingSpec& training, const ParallelPlan& plan, const StackMemory& memory,
                      StateBytes& s) {
  const double gradient = size_bytes(training.gradient);
  const double whole = plan.shards() == 1 ? 0.0 : plan.shards();  // of one shard, its copies are used again
  if (memory.host_whole_bytes > 0)
    s.host_optimizer += memory.host_whole_bytes * whole;
  else
    s.host_optimizer = std::max(s.host_optimizer, whole == 0 ? 0.0 : 4 * whole + 4 - gradient);
  if (plan.optimizer_offload >= 1) return;
  if (size_bytes(training.parameter) >= 4) return;
  s.optimizer += s.update;  // gradients in fp32 are never freed
  s.update = std::max(0.0, 4 * whole - 8 - s.update);
}

}  // namespace

StateBytes state_bytes(const TrainingSpec& training, const ParallelPlan& plan, const StackSpec& stack) {
  StateBytes s;
  s.parameter = size_bytes(training.parameter);
  const int own = stack.memory.gradients_as_parameters ? 2 : 4;  // what gradient_bytes is stated for
  s.gradient = std::max(0.0, stack.memory.gradient_bytes + size_bytes(training.gradient) - own) +
               (plan.shards() == 1 ? stack.memory.ddp_extra_bytes : 0.0);
  if (stack.memory.bf16_sums_beside_gradients && has_bf16_optimizer(training, plan))
    s.gradient += s.parameter;
  if (stack.memory.sharded_gradients_fp32 && plan.pp == 1 && size_bytes(training.optimizer_state) >= 4)
    s.gradient = stack.memory.gradient_bytes;
  s.update = update_copies(training, plan, stack.memory) + stack.memory.update_extra_bytes;
  const bool copied = stack.memory.sharded_master_of_fp32 && plan.zero_stage > 0 &&
                      (plan.zero_stage < 3 || plan.optimizer_offload > 0);
  const double master = size_bytes(training.parameter) >= 4 && !copied ? 0.0 : 4.0;
  const bool whole_first = stack.memory.offload_from_whole && plan.optimizer_offload > 0;
  s.optimizer = s.host_optimizer =
      master + 2.0 * (whole_first ? std::max(4, size_bytes(training.optimizer_state))
                                  : size_bytes(training.optimizer_state));
  const int gradient = size_bytes(training.gradient);
  s.host_optimizer += stack.memory.host_extra_bytes;
  if (stack.memory.host_gradients_fp32) s.host_optimizer += std::max(0, 4 - gradient);
  // Who updates fp32 parameters on the host has a copy of what stays on the device.
  if (master == 0 && !plan.parameter_offload && !stack.memory.exact_tensors) s.host_optimizer += 4;
  if (whole_first) add_whole_copies(training, plan, stack.memory, s);
  s.host_places = stack.memory.host_places_bytes;
  if (stack.memory.gradients_in_parameters && plan.zero_stage == 3) {
    const bool alone = microbatches(plan, training) <= 1;
    if (alone) s.gradient = 0;
    if (alone && plan.parameter_offload) s.host_optimizer -= gradient;
    if (!alone && !plan.parameter_offload) s.host_optimizer += s.parameter;
  }
  if (const double part = plan.optimizer_offload;
      stack.memory.part_offload_moves_gradients && part > 0 && part < 1 && plan.zero_stage == 3) {
    s.host_optimizer += s.gradient * (1 - part) / part;  // of what the device updates
    s.gradient = 4 * (1 - part);
    s.update = 0;
  }
  // The master copy is what rests, beside the moments. Parameters that stay gathered between micro-batches are beside it: of ZeRO 2,
  // and below ZeRO 3 with pipeline stages.
  const bool stay = plan.pp > 1 && !stack.rules.reduce_every_microbatch_with_pp
                        ? plan.zero_stage < 3
                        : plan.zero_stage == 2 && plan.shards() > 1;
  if (stack.rules.shards_are_master && !stay) s.optimizer -= std::min(master, s.parameter);
  if (plan.parameter_offload && stack.rules.host_parameters_are_master)
    s.host_optimizer -= std::min(master, s.parameter);
  if (stack.memory.exact_tensors) {
    s.gradient = size_bytes(training.gradient);
    // Whoever updates what rests elsewhere holds the new parameters until they are copied.
    (plan.parameter_offload ? s.optimizer : s.host_optimizer) += s.parameter;
  }
  return s;
}

}  // namespace sextant
