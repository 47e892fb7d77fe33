#include "cost_models/pointwise.hpp"

namespace sextant {

// Source: bytes of the operations of one layer, counted; the factor k of a stack and the eager norm are
// fitted on whole runs. Units: bytes. A layer has two norm units, so each takes half of the residual-width
// passes.
Pointwise block_passes(const BlockWork& w, const StackKernels& stack, const CostConstants& c, bool backward) {
  const auto tokens = static_cast<double>(w.tokens());
  const double residual_tokens = w.sequence_parallel ? tokens / w.tp : tokens;
  const double launches = backward ? c.pointwise_backward_launches : c.pointwise_forward_launches;
  Pointwise p;
  switch (w.kind) {
    case BlockKind::norm:
      p.bytes = 2.0 * stack.pointwise_passes * c.pointwise_hidden_passes / 2 * w.hidden * residual_tokens;
      if (!stack.norm_fused)
        p.bytes += 2.0 * c.pointwise_unfused_norm_passes / 2 * w.hidden * residual_tokens;
      p.launches = launches / 4;
      break;
    case BlockKind::residual:  // two read, one written
      return {2.0 * 3.0 * w.hidden * residual_tokens, 1};
    case BlockKind::qkv:  // q, k, v in and out: 6h when kv = q
      p.bytes = 2.0 * stack.pointwise_passes * 2.0 * (w.heads + 2.0 * w.kv_heads) * w.head_dim * tokens;
      p.launches = launches / 4;
      break;
    case BlockKind::mlp:
      p.bytes = 2.0 * stack.pointwise_passes * (w.gated ? 3.0 : 2.0) * w.ffn * tokens;
      p.launches = launches / 4;
      break;
    default:
      return {};
  }
  if (backward) p.bytes *= c.pass_backward_factor;
  if (w.dtype == Dtype::fp8 && w.kind != BlockKind::norm)  // inputs of qkv and mlp are quantised
    p.bytes += (c.fp8_passes + (stack.fp8_scales == Fp8Scales::row ? stack.fp8_row_bytes : 0)) / 2 *
               w.hidden * tokens;
  return p;
}

// Source: operations of Transformer Engine's p2p context parallelism (causal, two slices a rank), counted; means over the
// steps and ranks, of which one step in four or so works on half of the queries. Units: bytes.
Pointwise ring_passes(const BlockWork& w, const CostConstants& c, bool backward) {
  const double steps = static_cast<double>(w.seq_k) / w.seq_q,
               channels = static_cast<double>(w.tokens()) * w.head_dim,
               query = backward ? c.ring_backward_query_bytes : c.ring_forward_query_bytes,
               key = backward ? c.ring_backward_key_bytes : c.ring_forward_key_bytes;
  return {steps * channels * (query * w.heads + key * 2 * w.kv_heads),
          steps * (backward ? c.ring_backward_launches : c.ring_forward_launches)};
}

// Source: last-stage profiles of a pipeline at four vocabularies (layer timings). Units: bytes per logit. Where logits are
// gathered, every rank goes over those of the whole vocabulary.
Pointwise loss_passes(const BlockWork& w, const StackKernels& stack, const CostConstants& c, bool backward,
                      bool gathered) {
  const double logits = static_cast<double>(w.tokens()) * w.vocab;
  const double share = backward ? 1 - c.loss_forward_share : c.loss_forward_share;
  return {stack.loss_bytes_per_logit * logits * share * (gathered ? w.tp : 1),
          backward ? c.loss_backward_launches : c.loss_forward_launches};
}

// Source: first-stage backward of the same profiles grows by 7 bytes per table element: the dense gradient is
// cleared, filled and added to the accumulator.
Pointwise embedding_passes(const BlockWork& w, const CostConstants& c, bool backward) {
  const double rows = 2.0 * 2.0 * static_cast<double>(w.tokens()) * w.hidden;
  if (!backward) return {rows, 2};
  return {rows + c.embedding_backward_bytes * static_cast<double>(w.vocab) * w.hidden, 3};
}

OpCost price_pointwise(const Pointwise& p, const Machine& machine) {
  OpCost cost;
  cost.memory = Seconds(p.bytes / machine.memory_rate);
  cost.latency = Seconds(p.launches * machine.launch);
  cost.duration = cost.memory + cost.latency;
  return cost;
}

}  // namespace sextant
