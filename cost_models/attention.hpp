// How long does the attention core (scores, softmax, weighted sum; no projections) take, by kernel
// generation? Ignores variable-length batches and masks other than causal ones and windows; what ALiBi adds to a score is free.
#pragma once

#include "core/base/dtype.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

struct AttentionCore {
  int batch = 1, seq_q = 0, seq_k = 0;
  int heads = 0, head_dim = 0;
  bool backward = false;
  Dtype dtype = Dtype::bf16;
  int steps = 1;         // of a ring: kernels one after the other, each over as many keys
  double share = 1;      // of the tiles of plain causal attention that a window leaves (tile_share)
  int context = 0;       // keys that a query sees at most: seq_k, or the window
  double imbalance = 1;  // work of the busiest rank over the mean of its context-parallel group
  bool operator==(const AttentionCore&) const = default;
};

// Tiles of queries and keys in which a pair is seen, over those of plain causal attention: what is left to a kernel that skips
// the others and does the rest in full, those that the window's edge cuts too. Tiles are of kAttentionTile queries and keys, as
// FlashAttention 2 and 3 and cuDNN have at heads of 128; 1 without a window.
inline constexpr int kAttentionTile = 128;
double tile_share(int window, int seq_len);

// FLOPs that the kernel does: causal half for flash kernels, of that the window's share for those that skip what lies outside
// (FlashAttention 2 and 3, cuDNN); everything for unfused ones.
Flops attention_flops(const AttentionCore&, AttentionKernel);

OpCost price_attention(const AttentionCore&, AttentionKernel, const Machine&);

}  // namespace sextant
