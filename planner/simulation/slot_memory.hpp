// How many bytes are live at the fullest moment of one slot of a stage? Walks the buffers that lowering makes for it
// (planner/lowering/passes.cpp), without a graph.
#pragma once

#include <array>
#include <cstdint>

#include "core/graph/execution_graph.hpp"
#include "planner/lowering/shapes.hpp"

namespace sextant {

// Live bytes by kind while a slot runs, and the fullest moment so far.
class RunningBytes {
 public:
  using ByKind = std::array<std::int64_t, kBufferKinds>;
  explicit RunningBytes(const ByKind& base) : now_(base) {
    for (const std::int64_t bytes : base) total_ += bytes;
    mark();
  }
  void alloc(BufferKind kind, std::int64_t bytes) {
    now_[static_cast<std::size_t>(kind)] += bytes;
    total_ += bytes;
    mark();
  }
  void free(BufferKind kind, std::int64_t bytes) {
    now_[static_cast<std::size_t>(kind)] -= bytes;
    total_ -= bytes;
  }
  void temporary(std::int64_t bytes) { alloc(BufferKind::workspace, bytes); }
  void drop(std::int64_t bytes) { free(BufferKind::workspace, bytes); }
  std::int64_t peak() const { return peak_; }
  const ByKind& at_peak() const { return at_peak_; }
  const ByKind& now() const { return now_; }
  // As often again what has happened since `before`, without looking at the moments between.
  void repeat(const ByKind& before, std::int64_t times) {
    for (std::size_t k = 0; k < now_.size(); ++k) {
      const std::int64_t more = times * (now_[k] - before[k]);
      now_[k] += more;
      total_ += more;
    }
  }

 private:
  void mark() {
    if (total_ > peak_) {
      peak_ = total_;
      at_peak_ = now_;
    }
  }
  ByKind now_, at_peak_{};
  std::int64_t total_ = 0, peak_ = -1;
};

// Mirrors planner/lowering/passes.cpp buffer by buffer.
class SlotWalk {
 public:
  explicit SlotWalk(const lowering::Context& c)
      : context_(c),
        bytes_(c.activation),
        tp_(c.plan.tp > 1),
        sp_(c.sp()),
        ring_(c.cp_ring()),
        split_(c.split_backward()) {
    const Recompute& r = c.plan.recompute;
    again_ = r.kind != RecomputeKind::full ? 0 : (r.layers < 0 ? INT32_MAX : r.layers);
  }

  // What one micro-batch keeps on a chunk until its backward begins, by kind.
  void add_saved(RunningBytes::ByKind& base, int chunk) const;
  // Zero bubble: what it keeps between its backward and its weight half.
  void add_saved_weight(RunningBytes::ByKind& base, int chunk) const;

  // One slot, from when it begins.
  void forward(RunningBytes&, int chunk) const;
  void backward(RunningBytes&, int chunk) const;
  void weight(RunningBytes&, int chunk) const;
  void drop_branch(RunningBytes&) const;
  void mlp_branch(RunningBytes&) const;
  void layer_backward(RunningBytes&, int layer) const;  // of a chunk; what it keeps is there when it begins

 private:
  static std::int64_t& at(RunningBytes::ByKind& base, BufferKind kind) {
    return base[static_cast<std::size_t>(kind)];
  }

  // Layers are recomputed, offloaded or neither, in that order. From the second of a kind on each changes what is held by
  // the same bytes, so that the fullest moment is in the first two or in the last: those between are not walked.
  enum class LayerOrder : std::uint8_t { forwards, backwards };
  template <class Layer>
  void each_layer(RunningBytes&, int count, LayerOrder, const Layer&) const;

  struct LayerForm {
    bool again = false;  // recomputed in its backward
    bool resident =
        false;  // its activations lie in the ring of offloaded layers, which is there for the whole step
  };
  LayerForm form_of(int layer) const;

  // A partial result that has just been written leaves the tensor-parallel region; returns what remains of it.
  std::int64_t leave_tp(RunningBytes&) const;
  void attention_inputs(RunningBytes&) const;
  void leave_attention(RunningBytes&, BufferKind kept, std::int64_t mlp) const;
  std::int64_t layer_forward(RunningBytes&, BufferKind kept, LayerForm, std::int64_t branch) const;
  void layer_backward_after(RunningBytes&, LayerForm) const;

  const lowering::Context& context_;
  const ActivationBytes& bytes_;
  bool tp_, sp_, ring_, split_;
  int again_;
};

}  // namespace sextant
