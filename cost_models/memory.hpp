// How many bytes does a layout hold, as the framework really holds it? Sizes of the buffers that lower() puts into the
// graph; planner/simulation/stage_memory.hpp adds them up in closed form, the graph's own accounting must agree to the byte.
// Coefficients belong to a software stack (StackMemory); formulas: design notes on memory per stage, after Korthikanti
// et al. 2022 (arXiv 2205.05198) with each framework's own copies.
#pragma once

#include <cstdint>

#include "core/graph/parameter_layout.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// Bytes on one rank for one micro-batch. T = tokens per rank and micro-batch, h hidden, t = tp.
struct ActivationBytes {
  std::int64_t stream = 0;           // residual stream: T h (/ t under SP)
  std::int64_t gathered = 0;         // T h: input or output of a tensor-parallel region
  std::int64_t saved_attention = 0;  // kept by the attention half of a layer until its backward
  std::int64_t saved_mlp = 0;        // kept by the MLP half
  std::int64_t saved_input = 0;      // kept by a fully recomputed layer
  std::int64_t host_input = 0;       // ... on the host instead, where the stack offloads such inputs
  std::int64_t ring_attention = 0, ring_mlp = 0;  // of a place of the ring through which layers are offloaded
  std::int64_t again_attention = 0;  // alive while a fully recomputed layer's attention half runs
  std::int64_t again_mlp = 0;        // ... its MLP half
  std::int64_t saved_head = 0;       // kept by the final norm
  std::int64_t qkv_gradient = 0;     // dQ, dK, dV between attention and QKV backward
  std::int64_t deferred_attention = 0, deferred_mlp = 0;  // kept for the weight half of a split backward
  std::int64_t kv_gathered = 0;                           // K and V of the whole sequence, cp > 1
  std::int64_t logits = 0;                                // from the head's forward to its backward
  std::int64_t logits_kept = 0;         // held on the head's stage beside them, all step long
  std::int64_t transient = 0;           // held by every stage beside its layers, all step long
  std::int64_t wgrad_placeholders = 0;  // ... of that what the optimizer's update does not free
  // Per token: a sum of q's row and one of k's (fp32), where TP ranks share their norm.
  std::int64_t qk_sums = 0;
  std::int64_t loss_stats = 0;  // per token: maximum, sum of exponentials, target logit; all tp ranks' (fp32)
};
ActivationBytes activation_bytes(const ModelSpec&, const TrainingSpec&, const ParallelPlan&,
                                 const StackSpec&);

// Bytes of one bucket's state.
struct StateBytes {
  double parameter = 2;        // per element
  double gradient = 4;         // per element of the accumulation buffer
  double optimizer = 12;       // per owned element: master copy and two moments
  double host_optimizer = 12;  // ... of the share that the host updates
  double host_places = 0;      // on the host, of the share that the device updates
  double update = 0;           // per element that the device updates, while it does: copies and intermediates
  bool operator==(const StateBytes&) const = default;
};
StateBytes state_bytes(const TrainingSpec&, const ParallelPlan&, const StackSpec&);

}  // namespace sextant
