// Memory-bound passes: norms, rope, activation, residual, bias, dropout, loss, embedding. They are counted as
// bytes that go through memory; a fused or compiled stack makes fewer passes, which is what its k says.
#pragma once

#include "core/graph/work.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

struct Pointwise {
  double bytes = 0;     // read and written
  double launches = 0;  // kernels that share them
  bool operator==(const Pointwise&) const = default;
};

// The memory-bound passes of one launch unit: residual add and norm, rope with the layout changes of q, k, v,
// activation. Nothing for the other kinds.
Pointwise block_passes(const BlockWork&, const StackKernels&, const CostConstants&, bool backward);

// What a ring of CP ranks adds to the attention core, which goes in seq_k / seq_q steps: halves of queries and keys made
// contiguous, partial outputs and gradients added to those of the steps before.
Pointwise ring_passes(const BlockWork&, const CostConstants&, bool backward);

// Cross entropy of the local vocabulary slice. gathered: the stack gathers logits over tp first.
Pointwise loss_passes(const BlockWork&, const StackKernels&, const CostConstants&, bool backward,
                      bool gathered);

// Lookup, and the gradient's scatter into the dense table.
Pointwise embedding_passes(const BlockWork&, const CostConstants&, bool backward);

OpCost price_pointwise(const Pointwise&, const Machine&);

}  // namespace sextant
