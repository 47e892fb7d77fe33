#include "planner/simulation/slot_memory.hpp"

#include <algorithm>

namespace sextant {

void SlotWalk::add_saved(RunningBytes::ByKind& base, int chunk) const {
  const LayerRange range = context_.ranges[static_cast<std::size_t>(chunk)];
  const int again = std::min(again_, range.count);
  const int offloaded = std::max(0, std::min(context_.plan.activation_offload, range.count) - again);
  at(base, BufferKind::activation) +=
      (again * bytes_.saved_input +
       (range.count - again - offloaded) * (bytes_.saved_attention + bytes_.saved_mlp));
  if (chunk + 1 != context_.n_chunks()) return;
  at(base, BufferKind::activation) += bytes_.saved_head;
  at(base, BufferKind::logits) += bytes_.logits;
  if (tp_) at(base, BufferKind::workspace) += bytes_.loss_stats;
}

void SlotWalk::add_saved_weight(RunningBytes::ByKind& base, int chunk) const {
  const LayerRange range = context_.ranges[static_cast<std::size_t>(chunk)];
  at(base, BufferKind::activation) +=
      range.count * (bytes_.saved_attention + bytes_.saved_mlp + bytes_.deferred_attention +
                     bytes_.deferred_mlp + bytes_.qkv_gradient);
  if (chunk + 1 != context_.n_chunks()) return;
  at(base, BufferKind::activation) += bytes_.saved_head;
  at(base, BufferKind::logits) += bytes_.logits;
}

SlotWalk::LayerForm SlotWalk::form_of(int layer) const {
  const bool again = layer < again_;
  return {.again = again, .resident = !again && layer < context_.plan.activation_offload};
}

template <class Layer>
void SlotWalk::each_layer(RunningBytes& r, int count, LayerOrder order, const Layer& layer) const {
  const bool backwards = order == LayerOrder::backwards;
  const int again = std::min(again_, count),
            offloaded = std::clamp(context_.plan.activation_offload, again, count);
  const int ends[] = {0, again, offloaded, count};
  for (int kind = 0; kind < 3; ++kind) {
    const int i = backwards ? 2 - kind : kind;
    const int n = ends[i + 1] - ends[i];
    const auto nth = [&](int k) { layer(backwards ? ends[i + 1] - 1 - k : ends[i] + k); };
    for (int k = 0; k < n; ++k) {
      const RunningBytes::ByKind before = r.now();
      nth(k);
      if (k == 1 && n > 3) {
        r.repeat(before, n - 3);
        k = n - 2;
      }
    }
  }
}

void SlotWalk::forward(RunningBytes& r, int chunk) const {
  const LayerRange range = context_.ranges[static_cast<std::size_t>(chunk)];
  if (chunk == 0) {
    r.temporary(tp_ ? bytes_.gathered : bytes_.stream);
    if (sp_) {
      r.temporary(bytes_.stream);
      r.drop(bytes_.gathered);
    }
  }
  std::int64_t branch = 0;
  each_layer(r, range.count, LayerOrder::forwards, [&](int i) {
    const LayerForm form = form_of(i);
    const BufferKind kept = form.again ? BufferKind::workspace : BufferKind::activation;
    if (form.again) r.alloc(BufferKind::activation, bytes_.saved_input);
    branch = layer_forward(r, kept, form, branch);
  });
  if (chunk + 1 != context_.n_chunks()) return;
  r.alloc(BufferKind::activation, bytes_.saved_head);
  r.drop(branch);
  if (chunk == 0)
    r.drop(bytes_.stream);
  else
    r.free(BufferKind::communication, bytes_.stream);
  if (sp_) r.temporary(bytes_.gathered);
  r.alloc(BufferKind::logits, bytes_.logits);
  if (sp_) r.drop(bytes_.gathered);
  if (tp_) r.temporary(bytes_.loss_stats);
}

void SlotWalk::backward(RunningBytes& r, int chunk) const {
  const LayerRange range = context_.ranges[static_cast<std::size_t>(chunk)];
  if (chunk + 1 == context_.n_chunks()) {
    if (sp_) r.temporary(bytes_.gathered);
    r.temporary(bytes_.gathered);  // gradient of the head's input
    if (sp_) r.drop(bytes_.gathered);
    if (!split_) r.free(BufferKind::logits, bytes_.logits);
    if (tp_) r.drop(bytes_.loss_stats);
    const std::int64_t dx = leave_tp(r);
    r.temporary(bytes_.stream);
    r.drop(dx);
    if (!split_) r.free(BufferKind::activation, bytes_.saved_head);
  }
  each_layer(r, range.count, LayerOrder::backwards, [&](int i) { layer_backward(r, i); });
  if (chunk == 0 && sp_) r.temporary(bytes_.gathered);
}

void SlotWalk::weight(RunningBytes& r, int chunk) const {
  const LayerRange range = context_.ranges[static_cast<std::size_t>(chunk)];
  const auto gather = [&] {
    if (sp_) {
      r.temporary(bytes_.gathered);
      r.drop(bytes_.gathered);
    }
  };
  if (chunk + 1 == context_.n_chunks()) {
    gather();
    r.free(BufferKind::activation, bytes_.saved_head);
    r.free(BufferKind::logits, bytes_.logits);
  }
  each_layer(r, range.count, LayerOrder::forwards, [&](int) {
    gather();
    r.free(BufferKind::activation, bytes_.saved_mlp + bytes_.deferred_mlp);
    r.free(BufferKind::activation, bytes_.deferred_attention);
    gather();
    r.free(BufferKind::activation, bytes_.saved_attention + bytes_.qkv_gradient);
  });
}

std::int64_t SlotWalk::leave_tp(RunningBytes& r) const {
  if (!sp_) return bytes_.gathered;
  r.temporary(bytes_.stream);
  r.drop(bytes_.gathered);
  return bytes_.stream;
}

// From the projections on, until attention has its output. Of a ring, what the projections put into it is there with them,
// and it is all there for what follows.
void SlotWalk::attention_inputs(RunningBytes& r) const {
  if (sp_) r.temporary(bytes_.gathered);
  if (ring_) r.temporary(bytes_.kv_gathered);
  if (sp_) r.drop(bytes_.gathered);
  if (!ring_) r.temporary(bytes_.kv_gathered);
  r.temporary(bytes_.gathered);
  if (!ring_) r.drop(bytes_.kv_gathered);
}

// To the norm that keeps `mlp` bytes. A ring is read by what follows attention: a collective, or that norm.
void SlotWalk::leave_attention(RunningBytes& r, BufferKind kept, std::int64_t mlp) const {
  const std::int64_t branch = leave_tp(r);
  if (ring_ && tp_) r.drop(bytes_.kv_gathered);
  r.alloc(kept, mlp);
  if (ring_ && !tp_) r.drop(bytes_.kv_gathered);
  r.drop(branch);
}

std::int64_t SlotWalk::layer_forward(RunningBytes& r, BufferKind kept, LayerForm form,
                                     std::int64_t branch) const {
  const auto [again, resident] = form;
  r.alloc(kept, again ? bytes_.again_attention : (resident ? 0 : bytes_.saved_attention));
  r.drop(branch);
  if (context_.norms_after()) {
    attention_inputs(r);
    drop_branch(r);
    if (again) r.free(kept, bytes_.again_attention);
    r.alloc(kept, again ? bytes_.again_mlp : (resident ? 0 : bytes_.saved_mlp));
    mlp_branch(r);
    if (again) r.free(kept, bytes_.again_mlp);
    return 0;
  }
  attention_inputs(r);
  if (again) r.free(kept, bytes_.again_attention);
  leave_attention(r, kept, again ? bytes_.again_mlp : (resident ? 0 : bytes_.saved_mlp));
  if (sp_) r.temporary(bytes_.gathered);
  r.temporary(bytes_.gathered);
  if (sp_) r.drop(bytes_.gathered);
  if (again) r.free(kept, bytes_.again_mlp);
  return leave_tp(r);
}

// From attention's output to the norm behind it, which reads what is left of a ring.
void SlotWalk::drop_branch(RunningBytes& r) const {
  const std::int64_t branch = leave_tp(r);
  if (ring_) r.drop(bytes_.kv_gathered);
  r.drop(branch);
}

// The MLP and the norm behind it.
void SlotWalk::mlp_branch(RunningBytes& r) const {
  if (sp_) r.temporary(bytes_.gathered);
  r.temporary(bytes_.gathered);
  if (sp_) r.drop(bytes_.gathered);
  r.drop(leave_tp(r));
}

// As layer_backward(), with norms behind the GEMMs: a half begins with its norm's gradient, and the last to read what it
// has kept is the backward of its first GEMM.
void SlotWalk::layer_backward_after(RunningBytes& r, LayerForm form) const {
  const auto [again, resident] = form;
  const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
  if (again) {
    r.alloc(kept, bytes_.again_attention);
    attention_inputs(r);
    drop_branch(r);
    r.alloc(kept, bytes_.again_mlp);
    mlp_branch(r);
    r.free(BufferKind::activation, bytes_.saved_input);
  }
  const std::int64_t dy =
      sp_ ? bytes_.gathered : bytes_.stream;  // the branch's gradient, as the GEMM reads it
  const auto enter = [&] {
    r.temporary(bytes_.stream);
    if (sp_) {
      r.temporary(bytes_.gathered);
      r.drop(bytes_.stream);
    }
  };
  enter();
  r.temporary(bytes_.gathered);
  if (split_) r.alloc(BufferKind::activation, bytes_.deferred_mlp);
  r.drop(dy);
  if (!split_ && !resident) r.free(kept, again ? bytes_.again_mlp : bytes_.saved_mlp);
  r.drop(leave_tp(r));
  enter();
  r.temporary(bytes_.kv_gathered);
  r.alloc(split_ ? BufferKind::activation : BufferKind::workspace, bytes_.qkv_gradient);
  r.temporary(bytes_.kv_gathered);
  if (split_) r.alloc(BufferKind::activation, bytes_.deferred_attention);
  r.drop(dy);
  if (!ring_) r.drop(2 * bytes_.kv_gathered);
  r.temporary(bytes_.gathered);
  if (ring_) r.drop(2 * bytes_.kv_gathered);
  if (!split_) r.drop(bytes_.qkv_gradient);
  if (!split_ && !resident) r.free(kept, again ? bytes_.again_attention : bytes_.saved_attention);
  r.drop(leave_tp(r));
}

void SlotWalk::layer_backward(RunningBytes& r, int layer) const {
  const LayerForm form = form_of(layer);
  if (context_.norms_after()) return layer_backward_after(r, form);
  const auto [again, resident] = form;
  const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
  if (again) {
    r.alloc(kept, bytes_.again_attention);
    attention_inputs(r);
    leave_attention(r, kept, bytes_.again_mlp);
    r.free(BufferKind::activation, bytes_.saved_input);
    if (sp_) r.temporary(bytes_.gathered);
    r.temporary(bytes_.gathered);
    if (sp_) r.drop(bytes_.gathered);
    r.drop(leave_tp(r));
  }
  // mlp half
  if (sp_) r.temporary(bytes_.gathered);
  r.temporary(bytes_.gathered);
  if (split_) r.alloc(BufferKind::activation, bytes_.deferred_mlp);
  if (sp_) r.drop(bytes_.gathered);
  std::int64_t dx = leave_tp(r);
  r.drop(dx);
  if (!split_ && !resident) r.free(kept, again ? bytes_.again_mlp : bytes_.saved_mlp);
  // attention half
  if (sp_) r.temporary(bytes_.gathered);
  r.temporary(bytes_.kv_gathered);
  const BufferKind dqkv = split_ ? BufferKind::activation : BufferKind::workspace;
  r.alloc(dqkv, bytes_.qkv_gradient);
  r.temporary(bytes_.kv_gathered);
  if (split_) r.alloc(BufferKind::activation, bytes_.deferred_attention);
  if (sp_) r.drop(bytes_.gathered);
  if (!ring_) r.drop(2 * bytes_.kv_gathered);
  r.temporary(bytes_.gathered);
  if (ring_) r.drop(2 * bytes_.kv_gathered);
  if (!split_) r.drop(bytes_.qkv_gradient);
  dx = leave_tp(r);
  r.drop(dx);
  if (!split_ && !resident) r.free(kept, again ? bytes_.again_attention : bytes_.saved_attention);
}

}  // namespace sextant
