// How long does the attention core (scores, softmax, weighted sum; no projections) take, by kernel
// generation? Ignores variable-length batches and masks other than causal.
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
  double imbalance = 1;  // work of the busiest rank over the mean of its context-parallel group
  bool operator==(const AttentionCore&) const = default;
};

// FLOPs that the kernel does: causal half for flash kernels, everything for unfused ones.
Flops attention_flops(const AttentionCore&, AttentionKernel);

OpCost price_attention(const AttentionCore&, AttentionKernel, const Machine&);

}  // namespace sextant
