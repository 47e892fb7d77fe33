#include "cost_models/attention.hpp"

#include <algorithm>
#include <cmath>

namespace sextant {

namespace {

bool is_flash(AttentionKernel k) {
  return k != AttentionKernel::unfused && k != AttentionKernel::fused_softmax;
}

bool skips_beyond_window(AttentionKernel k) {
  return k == AttentionKernel::flash2 || k == AttentionKernel::flash3 || k == AttentionKernel::cudnn;
}

double scores(const AttentionCore& a) { return static_cast<double>(a.batch) * a.seq_q * a.seq_k * a.heads; }

double base_rate(AttentionKernel kernel, const CostConstants& c) {
  switch (kernel) {
    case AttentionKernel::flash1:
      return c.attention_flash1_TFLOPS * 1e12;
    case AttentionKernel::flash2:
      return c.attention_flash2_TFLOPS * 1e12;
    case AttentionKernel::flash3:
      return c.attention_flash3_TFLOPS * 1e12;
    case AttentionKernel::cudnn:
      return c.attention_cudnn_TFLOPS * 1e12;
    case AttentionKernel::triton:
      return c.attention_triton_TFLOPS * 1e12;
    default:
      return 0;
  }
}

double head_factor(int head_dim, AttentionKernel kernel, const CostConstants& c) {
  // The first generation is not slower at 64: its charts show 70..97 there and 62..83 TFLOP/s at 128 (A100).
  if (head_dim >= 128 || (kernel == AttentionKernel::flash1 && head_dim >= 64)) return 1.0;
  if (head_dim >= 96) return c.attention_head_96;
  if (head_dim >= 64) return c.attention_head_64;
  return c.attention_head_small;
}

// Rates and half lengths of the FlashAttention papers' charts (attention tables), which are of so many multiprocessors:
// exponentials and shared memory come with them, not with the peak. Those without a block of queries do nothing. It is made
// of GEMMs, and is no faster than the device's (H20: a seventh of the rate of the generation that the charts
// show). Units: FLOP/s.
double flash_rate(const AttentionCore& a, AttentionKernel kernel, const Machine& machine) {
  const CostConstants& c = machine.constants;
  const int context = skips_beyond_window(kernel) && a.context > 0 ? std::min(a.context, a.seq_k) : a.seq_k;
  const double length = static_cast<double>(context) / a.steps;
  const double half =
      kernel == AttentionKernel::flash1 ? c.attention_half_length_flash1 : c.attention_half_length;
  const double blocks = static_cast<double>(a.batch) * a.heads * std::ceil(a.seq_q / 128.0);
  const double charted = base_rate(kernel, c) * machine.attention_share * head_factor(a.head_dim, kernel, c) *
                         (a.backward ? c.attention_backward_factor : c.attention_forward_factor);
  const double products = machine.peak[static_cast<std::size_t>(a.dtype)] * c.gemm_efficiency;
  // No chart shows what more multiprocessors than its own reach: attention is no faster with them.
  const double working = c.attention_multiprocessors > 0
                             ? std::min<double>(machine.multiprocessors, c.attention_multiprocessors)
                             : machine.multiprocessors;
  const double reached = std::min(charted * std::min(1.0, blocks / working),
                                  products * std::min(1.0, blocks / machine.tiles_at_once));
  return reached * length / (length + half);
}

}  // namespace

double tile_share(int window, int seq_len) {
  if (window <= 0 || window >= seq_len) return 1;
  const std::int64_t tile = kAttentionTile, rows = (seq_len + tile - 1) / tile;
  std::int64_t left = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t first = std::max<std::int64_t>(0, row * tile - window + 1) / tile;
    left += row + 1 - first;
  }
  return static_cast<double>(left) / (static_cast<double>(rows) * static_cast<double>(rows + 1) / 2);
}

Flops attention_flops(const AttentionCore& a, AttentionKernel kernel) {
  const double causal_forward = 2.0 * scores(a) * a.head_dim * (skips_beyond_window(kernel) ? a.share : 1.0);
  if (is_flash(kernel)) return Flops(causal_forward * (a.backward ? 2.5 : 1.0));
  return Flops(2.0 * causal_forward * (a.backward ? 2.0 : 1.0));
}

OpCost price_attention(const AttentionCore& a, AttentionKernel kernel, const Machine& machine) {
  const double flops = attention_flops(a, kernel).v;
  if (flops <= 0) return {};
  const CostConstants& c = machine.constants;
  OpCost cost;
  cost.latency = Seconds(machine.launch * (is_flash(kernel) ? 1 : 3) * a.steps);
  // q, k, v read and the output written (twice that, with gradients, backward): the floor of any kernel.
  const double io = 2.0 * 4.0 * a.batch * (static_cast<double>(a.seq_q) + a.seq_k) / 2 * a.heads * a.head_dim;
  if (is_flash(kernel)) {
    cost.compute = Seconds(a.imbalance * flops / flash_rate(a, kernel, machine));
    cost.memory = Seconds(io * (a.backward ? 2 : 1) / machine.memory_rate);
    cost.duration = std::max(cost.compute, cost.memory) + cost.latency;
    return cost;
  }
  // Two batched GEMMs of depth head_dim, and several passes over the scores between them.
  const double peak = machine.peak[static_cast<std::size_t>(a.dtype)];
  double rate = peak * c.gemm_efficiency * a.head_dim / (a.head_dim + c.gemm_depth_overhead);
  if (a.head_dim % 8 != 0) rate *= c.unfused_misaligned;
  const double per_score =
      kernel == AttentionKernel::fused_softmax ? c.fused_score_bytes : c.unfused_score_bytes;
  cost.compute = Seconds(flops / rate);
  cost.memory = Seconds((scores(a) * per_score * (a.backward ? c.pass_backward_factor : 1.0) + io) /
                        machine.memory_rate);
  cost.duration = cost.compute + cost.memory + cost.latency;  // one after the other
  return cost;
}

}  // namespace sextant
