#include "cost_models/memory.hpp"

#include <cmath>

namespace sextant {
namespace {

std::int64_t bytes(double x) { return static_cast<std::int64_t>(std::llround(x)); }

}  // namespace

ActivationBytes activation_bytes(const ModelSpec& m, const TrainingSpec& training, const ParallelPlan& plan,
                                 const StackSpec& stack) {
  const StackMemory& k = stack.memory;
  const LocalShape local = local_shape(m, plan.tp, stack.rules.vocab_multiple);
  const double element = training.compute == Dtype::fp32 || training.compute == Dtype::fp64
                             ? size_bytes(training.compute)
                             : 2.0;  // fp8 products still keep 16-bit activations
  const double T = static_cast<double>(plan.micro_batch) * training.seq_len / plan.cp;
  const double h = m.hidden, t = plan.tp;
  const double split = plan.sequence_parallel ? t : 1.0;  // what SP divides
  const double heads = static_cast<double>(local.heads) * m.head_dim;
  const double kv = static_cast<double>(local.kv_heads) * m.head_dim;
  const double scale = element / 2.0;  // the coefficients count bytes of 16-bit training

  const double norm = k.saved_hidden * h / split + (stack.kernels.norm_fused ? 0.0 : 7.0 * h / split);
  const double tp_copy = plan.tp > 1 ? k.saved_tp * h / 2.0 : 0.0;
  // The score matrix, kept by kernels without online softmax unless the core is recomputed.
  const double scores = plan.recompute.kind == RecomputeKind::none
                            ? k.attention_scores * local.heads * static_cast<double>(training.seq_len)
                            : 0.0;

  ActivationBytes b;
  b.stream = bytes(element * T * h / split);
  b.gathered = bytes(element * T * h);
  b.saved_attention =
      bytes(scale * T *
            (norm + tp_copy + 2.0 * (heads + 2.0 * kv) + 2.0 * heads + k.saved_rope * (heads + kv) + scores));
  b.saved_mlp = bytes(scale * T * (norm + tp_copy + 2.0 * k.saved_ffn * local.ffn));
  b.saved_input = bytes(scale * T * k.full_recompute_hidden * h / split);
  b.saved_head = bytes(scale * T * k.saved_hidden * h / split);
  b.qkv_gradient = bytes(element * T * (heads + 2.0 * kv));
  b.kv_gathered = plan.cp > 1 ? bytes(element * T * plan.cp * 2.0 * kv) : 0;
  b.logits = bytes(k.logits_bytes * T * local.vocab);
  b.loss_stats = plan.tp > 1 ? bytes(3.0 * 4.0 * T * t) : 0;
  return b;
}

StateBytes state_bytes(const TrainingSpec& training, const ParallelPlan& plan, const StackSpec& stack) {
  StateBytes s;
  s.parameter = size_bytes(training.parameter);
  s.gradient = stack.memory.gradient_bytes + (plan.shards() == 1 ? stack.memory.ddp_extra_bytes : 0.0);
  const double master = size_bytes(training.parameter) >= 4 ? 0.0 : 4.0;
  s.optimizer = master + 2.0 * size_bytes(training.optimizer_state);
  return s;
}

}  // namespace sextant
