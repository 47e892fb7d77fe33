// How long does the attention core (scores, softmax, weighted sum; no projections) take, by kernel
// generation? Ignores variable-length batches and masks other than causal
// ones and windows; tiles that a window cuts are counted by what is seen in them.
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
  double share = 1;      // of the pairs of plain causal attention that are seen: below 1 with a window
  int context = 0;       // keys that a query sees at most: seq_k, or the window
  double imbalance = 1;  // work of the busiest rank over the mean of its context-parallel group
  bool operator==(const AttentionCore&) const = default;
};

// FLOPs that the kernel does: causal half for flash kernels, of that the window's share for those that skip what lies outside
// (FlashAttention 2 and 3, cuDNN); everything for unfused ones.
Flops attention_flops(const AttentionCore&, AttentionKernel);

OpCost price_attention(const AttentionCore&, AttentionKernel, const Machine&);

}  // namespace sextant
