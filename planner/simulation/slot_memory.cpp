#include "planner/simulation/slot_memory.hpp"

#include <algorithm>

namespace sextant {

void SlotWalk::add_saved(RunningBytes::ByKind& base, int chunk) const {
  const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
  const int again = std::min(again_, range.count);
  const int offloaded = std::max(0, std::min(c_.plan.activation_offload, range.count) - again);
  at(base, BufferKind::activation) +=
      (again * b_.saved_input + (range.count - again - offloaded) * (b_.saved_attention + b_.saved_mlp));
  if (chunk + 1 != c_.n_chunks()) return;
  at(base, BufferKind::activation) += b_.saved_head;
  at(base, BufferKind::logits) += b_.logits;
  if (tp_) at(base, BufferKind::workspace) += b_.loss_stats;
}

void SlotWalk::add_saved_weight(RunningBytes::ByKind& base, int chunk) const {
  const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
  at(base, BufferKind::activation) +=
      range.count *
      (b_.saved_attention + b_.saved_mlp + b_.deferred_attention + b_.deferred_mlp + b_.qkv_gradient);
  if (chunk + 1 != c_.n_chunks()) return;
  at(base, BufferKind::activation) += b_.saved_head;
  at(base, BufferKind::logits) += b_.logits;
}

template <class Layer>
void SlotWalk::each_layer(RunningBytes& r, int count, bool backwards, const Layer& layer) const {
  const int again = std::min(again_, count), offloaded = std::clamp(c_.plan.activation_offload, again, count);
  const int ends[] = {0, again, offloaded, count};
  for (int kind = 0; kind < 3; ++kind) {
    const int i = backwards ? 2 - kind : kind;
    const int n = ends[i + 1] - ends[i];
    const auto nth = [&](int k) { layer(backwards ? ends[i + 1] - 1 - k : ends[i] + k); };
    for (int k = 0; k < n; ++k) {
      const RunningBytes::ByKind before = r.now();
      nth(k);
      if (k == 1 && n > 3) r.repeat(before, n - 3), k = n - 2;
    }
  }
}

void SlotWalk::forward(RunningBytes& r, int chunk) const {
  const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
  if (chunk == 0) {
    r.temporary(tp_ ? b_.gathered : b_.stream);
    if (sp_) r.temporary(b_.stream), r.drop(b_.gathered);
  }
  std::int64_t branch = 0;
  each_layer(r, range.count, false, [&](int i) {
    const bool again = i < again_;
    const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
    if (again) r.alloc(BufferKind::activation, b_.saved_input);
    branch = layer_forward(r, kept, again, branch, !again && i < c_.plan.activation_offload);
  });
  if (chunk + 1 != c_.n_chunks()) return;
  r.alloc(BufferKind::activation, b_.saved_head);
  r.drop(branch);
  if (chunk == 0)
    r.drop(b_.stream);
  else
    r.free(BufferKind::communication, b_.stream);
  if (sp_) r.temporary(b_.gathered);
  r.alloc(BufferKind::logits, b_.logits);
  if (sp_) r.drop(b_.gathered);
  if (tp_) r.temporary(b_.loss_stats);
}

void SlotWalk::backward(RunningBytes& r, int chunk) const {
  const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
  if (chunk + 1 == c_.n_chunks()) {
    if (sp_) r.temporary(b_.gathered);
    r.temporary(b_.gathered);  // gradient of the head's input
    if (sp_) r.drop(b_.gathered);
    if (!split_) r.free(BufferKind::logits, b_.logits);
    if (tp_) r.drop(b_.loss_stats);
    const std::int64_t dx = leave_tp(r);
    r.temporary(b_.stream);
    r.drop(dx);
    if (!split_) r.free(BufferKind::activation, b_.saved_head);
  }
  each_layer(r, range.count, true, [&](int i) { layer_backward(r, i); });
  if (chunk == 0 && sp_) r.temporary(b_.gathered);
}

void SlotWalk::weight(RunningBytes& r, int chunk) const {
  const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
  const auto gather = [&] {
    if (sp_) r.temporary(b_.gathered), r.drop(b_.gathered);
  };
  if (chunk + 1 == c_.n_chunks()) {
    gather();
    r.free(BufferKind::activation, b_.saved_head), r.free(BufferKind::logits, b_.logits);
  }
  each_layer(r, range.count, false, [&](int) {
    gather();
    r.free(BufferKind::activation, b_.saved_mlp + b_.deferred_mlp);
    r.free(BufferKind::activation, b_.deferred_attention);
    gather();
    r.free(BufferKind::activation, b_.saved_attention + b_.qkv_gradient);
  });
}

std::int64_t SlotWalk::leave_tp(RunningBytes& r) const {
  if (!sp_) return b_.gathered;
  r.temporary(b_.stream);
  r.drop(b_.gathered);
  return b_.stream;
}

// From the projections on, until attention has its output. Of a ring, what the projections put into it is there with them,
// and it is all there for what follows.
void SlotWalk::attention_inputs(RunningBytes& r) const {
  if (sp_) r.temporary(b_.gathered);
  if (ring_) r.temporary(b_.kv_gathered);
  if (sp_) r.drop(b_.gathered);
  if (!ring_) r.temporary(b_.kv_gathered);
  r.temporary(b_.gathered);
  if (!ring_) r.drop(b_.kv_gathered);
}

// To the norm that keeps `mlp` bytes. A ring is read by what follows attention: a collective, or that norm.
void SlotWalk::leave_attention(RunningBytes& r, BufferKind kept, std::int64_t mlp) const {
  const std::int64_t branch = leave_tp(r);
  if (ring_ && tp_) r.drop(b_.kv_gathered);
  r.alloc(kept, mlp);
  if (ring_ && !tp_) r.drop(b_.kv_gathered);
  r.drop(branch);
}

std::int64_t SlotWalk::layer_forward(RunningBytes& r, BufferKind kept, bool again, std::int64_t branch,
                                     bool resident) const {
  r.alloc(kept, again ? b_.again_attention : (resident ? 0 : b_.saved_attention));
  r.drop(branch);
  if (c_.norms_after()) {
    attention_inputs(r);
    drop_branch(r);
    if (again) r.free(kept, b_.again_attention);
    r.alloc(kept, again ? b_.again_mlp : (resident ? 0 : b_.saved_mlp));
    mlp_branch(r);
    if (again) r.free(kept, b_.again_mlp);
    return 0;
  }
  attention_inputs(r);
  if (again) r.free(kept, b_.again_attention);
  leave_attention(r, kept, again ? b_.again_mlp : (resident ? 0 : b_.saved_mlp));
  if (sp_) r.temporary(b_.gathered);
  r.temporary(b_.gathered);
  if (sp_) r.drop(b_.gathered);
  if (again) r.free(kept, b_.again_mlp);
  return leave_tp(r);
}

// From attention's output to the norm behind it, which reads what is left of a ring.
void SlotWalk::drop_branch(RunningBytes& r) const {
  const std::int64_t branch = leave_tp(r);
  if (ring_) r.drop(b_.kv_gathered);
  r.drop(branch);
}

// The MLP and the norm behind it.
void SlotWalk::mlp_branch(RunningBytes& r) const {
  if (sp_) r.temporary(b_.gathered);
  r.temporary(b_.gathered);
  if (sp_) r.drop(b_.gathered);
  r.drop(leave_tp(r));
}

// As layer_backward(), with norms behind the products: a half begins with its norm's gradient, and the last to read what it
// has kept is the backward of its first product.
void SlotWalk::layer_backward_after(RunningBytes& r, bool again, bool resident) const {
  const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
  if (again) {
    r.alloc(kept, b_.again_attention);
    attention_inputs(r);
    drop_branch(r);
    r.alloc(kept, b_.again_mlp);
    mlp_branch(r);
    r.free(BufferKind::activation, b_.saved_input);
  }
  const std::int64_t dy = sp_ ? b_.gathered : b_.stream;  // the branch's gradient, as the product reads it
  const auto enter = [&] {
    r.temporary(b_.stream);
    if (sp_) r.temporary(b_.gathered), r.drop(b_.stream);
  };
  enter();
  r.temporary(b_.gathered);
  if (split_) r.alloc(BufferKind::activation, b_.deferred_mlp);
  r.drop(dy);
  if (!split_ && !resident) r.free(kept, again ? b_.again_mlp : b_.saved_mlp);
  r.drop(leave_tp(r));
  enter();
  r.temporary(b_.kv_gathered);
  r.alloc(split_ ? BufferKind::activation : BufferKind::workspace, b_.qkv_gradient);
  r.temporary(b_.kv_gathered);
  if (split_) r.alloc(BufferKind::activation, b_.deferred_attention);
  r.drop(dy);
  if (!ring_) r.drop(2 * b_.kv_gathered);
  r.temporary(b_.gathered);
  if (ring_) r.drop(2 * b_.kv_gathered);
  if (!split_) r.drop(b_.qkv_gradient);
  if (!split_ && !resident) r.free(kept, again ? b_.again_attention : b_.saved_attention);
  r.drop(leave_tp(r));
}

void SlotWalk::layer_backward(RunningBytes& r, int layer) const {
  const bool again = layer < again_;
  const bool resident = !again && layer < c_.plan.activation_offload;  // in the ring of copied layers
  if (c_.norms_after()) return layer_backward_after(r, again, resident);
  const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
  if (again) {
    r.alloc(kept, b_.again_attention);
    attention_inputs(r);
    leave_attention(r, kept, b_.again_mlp);
    r.free(BufferKind::activation, b_.saved_input);
    if (sp_) r.temporary(b_.gathered);
    r.temporary(b_.gathered);
    if (sp_) r.drop(b_.gathered);
    r.drop(leave_tp(r));
  }
  // mlp half
  if (sp_) r.temporary(b_.gathered);
  r.temporary(b_.gathered);
  if (split_) r.alloc(BufferKind::activation, b_.deferred_mlp);
  if (sp_) r.drop(b_.gathered);
  std::int64_t dx = leave_tp(r);
  r.drop(dx);
  if (!split_ && !resident) r.free(kept, again ? b_.again_mlp : b_.saved_mlp);
  // attention half
  if (sp_) r.temporary(b_.gathered);
  r.temporary(b_.kv_gathered);
  const BufferKind dqkv = split_ ? BufferKind::activation : BufferKind::workspace;
  r.alloc(dqkv, b_.qkv_gradient);
  r.temporary(b_.kv_gathered);
  if (split_) r.alloc(BufferKind::activation, b_.deferred_attention);
  if (sp_) r.drop(b_.gathered);
  if (!ring_) r.drop(2 * b_.kv_gathered);
  r.temporary(b_.gathered);
  if (ring_) r.drop(2 * b_.kv_gathered);
  if (!split_) r.drop(b_.qkv_gradient);
  dx = leave_tp(r);
  r.drop(dx);
  if (!split_ && !resident) r.free(kept, again ? b_.again_attention : b_.saved_attention);
}

}  // namespace sextant
