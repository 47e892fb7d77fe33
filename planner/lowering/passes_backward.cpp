#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

using Use = OperandUse;

// Under SP the input of a column-parallel GEMM is kept as a slice and gathered again for its weight gradient, one
// half-layer ahead on the tp lane (Megatron hides it behind the data gradient).
OpId StageLowering::regather(const Site& at, const SavedLayer& layer, BufferId saved_input) {
  const std::size_t turn = next_regather_++ % 2;
  // Behind the op that kept its input and the one that last read its buffer: both are on the compute lane, where the newer
  // stands for both. What was offloaded stands behind its copy back, which may have waited for either.
  const bool fetched = layer.copied_in != kNoOp;
  OpId wait = fetched ? layer.copied_after : layer.kept_by;
  if (regather_reader_[turn] != kNoOp) wait = std::max(wait, regather_reader_[turn]);
  const OpId op =
      emitter_.emit(op_at(at, OpRole::tp_gather, Pass::backward, works_.tp_gather, lane(LaneKind::tp)),
                    {fetched && wait == layer.copied_after ? kNoOp : wait, layer.copied_in});
  emitter_.read(saved_input, Use::kept);
  emitter_.write(regathered_[turn], Use::gathered);
  return op;
}

void StageLowering::regather_read(OpId reader) {
  const std::size_t turn = (next_regather_ - 1) % 2;
  emitter_.read(regathered_[turn], Use::gathered);
  regather_reader_[turn] = emitter_.hold(reader);
}

// Backward of the GEMM that reads a norm's output (mlp, or qkv), and of the norm, which adds to the stream's gradient. Returns
// the last that reads what the half-layer has kept: the norm, or where norms stand behind, the GEMM.
// `ahead` gathers the GEMM's input again; a split backward keeps what the GEMM read in `kept` for its weight half.
OpId StageLowering::gemm_backward(const Site& at, BlockKind kind, std::initializer_list<Range> gradients,
                                  BufferId saved, BufferId stream, OpId ahead, BufferId* kept) {
  const bool split = context_.split_backward();
  BufferId dx = temporary(context_.activation.gathered);
  if (!split) wait_gradients(at, kind);
  emitter_.after(stage_, ahead);
  const OpId op = block(at, kind, split ? Pass::backward_input : Pass::backward);
  for (const Range& gradient : gradients) emitter_.read(gradient.buffer, gradient.use);
  emitter_.read(saved, Use::kept);
  emitter_.write(dx, Use::dx);
  if (ahead != kNoOp) regather_read(op);
  if (!split) add_gradients(at, kind, op);
  if (split && kept) {
    *kept = emitter_.buffer(BufferKind::activation, stage_, context_.activation.deferred_mlp);
    emitter_.write(*kept, Use::deferred);
  }
  dx = leave_tp(at, Pass::backward, dx);
  if (context_.norms_after()) {
    if (context_.ring_parameters() || !layer_ring_.empty()) emitter_.hold(op);  // rings turn when it is done
    block(at, BlockKind::residual, Pass::backward);
    emitter_.read(dx, Use::dx);
    emitter_.read(stream, Use::stream);
    emitter_.write(stream, Use::stream);
    return op;
  }
  wait_gradients(at, BlockKind::norm);
  const OpId norm = block(at, BlockKind::norm, Pass::backward);
  if (context_.ring_parameters() || !layer_ring_.empty()) emitter_.hold(norm);  // rings turn when it is done
  emitter_.read(dx, Use::dx);
  emitter_.read(saved, Use::kept);
  emitter_.read(stream, Use::stream);
  emitter_.write(stream, Use::stream);
  add_gradients(at, BlockKind::norm, norm);
  return norm;
}

// The gradient of a branch from that of the stream, where its norm stands behind it; else they are the same.
StageLowering::Range StageLowering::branch_gradient(const Site& at, BufferId saved, BufferId stream) {
  if (!context_.norms_after()) return {stream, Use::stream};
  const BufferId branch = temporary(context_.activation.stream);
  wait_gradients(at, BlockKind::norm);
  const OpId norm = block(at, BlockKind::norm, Pass::backward);
  emitter_.read(stream, Use::stream);
  emitter_.read(saved, Use::kept);
  emitter_.write(branch, Use::branch);
  add_gradients(at, BlockKind::norm, norm);
  return {branch, Use::branch};
}

// `gradients` are of q, keys and values, which become those of what the norms of q and k have read.
void StageLowering::qk_norm_backward(const Site& at, std::initializer_list<Range> gradients, BufferId saved) {
  if (!context_.norms_qk()) return;
  const Range& own = *gradients.begin();
  const auto operands = [&] {
    for (const Range& gradient : gradients) emitter_.read(gradient.buffer, gradient.use);
    emitter_.read(saved, Use::kept);
    emitter_.write(own.buffer, own.use);
  };
  if (context_.sums_qk()) {
    block(at, BlockKind::qk_sums, Pass::backward);
    operands();
    tp(at, OpRole::tp_reduce, Pass::backward, works_.qk_reduce, own, own);
  }
  wait_gradients(at, BlockKind::qk_norm);
  const OpId op = block(at, BlockKind::qk_norm, Pass::backward);
  operands();
  add_gradients(at, BlockKind::qk_norm, op);
}

void StageLowering::mlp_backward(Site at, SavedLayer& layer, BufferId stream) {
  at.norm = NormSite::mlp;
  const Range branch = branch_gradient(at, layer.mlp, stream);
  const bool regathered = context_.sp() && !context_.split_backward();
  const OpId ahead = regathered ? regather(at, layer, layer.mlp) : kNoOp;
  const BufferId dy = enter_tp(at, Pass::backward, branch);
  gemm_backward(at, BlockKind::mlp, {{dy, Use::dout}}, layer.mlp, stream, ahead, &layer.for_mlp);
}

void StageLowering::attention_backward(Site at, SavedLayer& layer, BufferId stream) {
  const bool split = context_.split_backward();
  at.norm = NormSite::attention;
  const Range branch = branch_gradient(at, layer.attention, stream);
  const bool regathered = context_.sp() && !split;
  const OpId ahead = regathered ? regather(at, layer, layer.attention) : kNoOp;
  const BufferId dy = enter_tp(at, Pass::backward, branch);
  BufferId kv = kNoBuffer, dkv = kNoBuffer;
  if (context_.plan.cp > 1) {
    kv = temporary(context_.activation.kv_gathered);
    dkv = temporary(context_.activation.kv_gathered);
    if (!context_.cp_ring())
      tp(at, OpRole::cp_gather, Pass::backward, works_.cp_gather, {layer.attention, Use::kept},
         {kv, Use::keys});
  }
  const Range begins{dy, context_.sp() ? Use::dout : branch.use};
  const OpId exchanged = context_.cp_ring() ? ring_backward(at, layer.attention, begins, kv, dkv) : kNoOp;
  const BufferId dqkv =
      split ? emitter_.buffer(BufferKind::activation, stage_, context_.activation.qkv_gradient)
            : temporary(context_.activation.qkv_gradient);
  if (!split) wait_gradients(at, BlockKind::attention);
  const OpId core = block(at, BlockKind::attention, split ? Pass::backward_input : Pass::backward);
  emitter_.read(dy, Use::dout);
  emitter_.read(layer.attention, Use::kept);
  emitter_.write(dqkv, Use::dqkv);
  if (!context_.cp_ring()) {
    emitter_.read(kv, Use::keys);
    emitter_.write(dkv, Use::dkeys);
  }
  if (split) {
    layer.for_attention =
        emitter_.buffer(BufferKind::activation, stage_, context_.activation.deferred_attention);
    layer.for_qkv = dqkv;
    emitter_.write(layer.for_attention, Use::deferred);
  } else {
    add_gradients(at, BlockKind::attention, core);
  }
  if (context_.plan.cp > 1 && !context_.cp_ring())
    tp(at, OpRole::cp_scatter, Pass::backward, works_.cp_scatter, {dkv, Use::dkeys}, {dqkv, Use::dqkv});
  emitter_.after(stage_, exchanged);
  const Range arrived{context_.cp_ring() ? kv : kNoBuffer, Use::keys},
      summed{context_.cp_ring() ? dkv : kNoBuffer, Use::dkeys};
  qk_norm_backward(at, {{dqkv, Use::dqkv}, arrived, summed}, layer.attention);
  const OpId last = gemm_backward(at, BlockKind::qkv, {{dqkv, Use::dqkv}, arrived, summed}, layer.attention,
                                  stream, ahead, nullptr);
  leave(last);
  if (layer.copied_in != kNoOp)
    layer_ring_[(next_place_ - 1) % layer_ring_.size()].reader = emitter_.hold(last);
}

void StageLowering::layer_backward(const Site& at, SavedLayer& layer, BufferId stream) {
  const bool again = recomputed(at.layer - range(at.chunk).first);
  if (again) {
    // The layer's forward once more, from its kept input, into temporaries that this backward consumes.
    layer.attention = temporary(context_.activation.again_attention);
    layer.mlp = temporary(context_.activation.again_mlp);
    layer_forward(at, Pass::recompute, layer, layer.input, kNoBuffer, kNoBuffer);
  }
  mlp_backward(at, layer, stream);
  attention_backward(at, layer, stream);
}

OpId StageLowering::backward_slot(const Slot& slot, OpId arrival, BufferId& stream) {
  Site at{model_chunk(slot), kNone16, slot.microbatch};
  const LayerRange layers = range(at.chunk);
  SavedChunk& keep = saved(slot);
  const bool split = context_.split_backward();
  module_ = -1;
  emitter_.after(stage_, arrival);

  if (last_chunk(at.chunk)) {
    visit(head_bucket());
    at.norm = NormSite::final;
    const BufferId inside = enter_tp(at, Pass::backward, {keep.head, Use::kept});
    BufferId dx = temporary(context_.activation.gathered);
    if (!split) wait_gradients(at, BlockKind::head);
    const OpId head =
        emitter_.hold(block(at, BlockKind::head, split ? Pass::backward_input : Pass::backward));
    emitter_.read(keep.logits, Use::loss);
    emitter_.read(keep.stats, Use::stats);
    emitter_.read(inside, inside == keep.head ? Use::kept : Use::gathered);
    emitter_.write(dx, Use::dx);
    if (split) {
      emitter_.write(keep.logits, Use::loss);  // now the gradient of the logits, for the weight half
    } else {
      add_gradients(at, BlockKind::head, head);
    }
    dx = leave_tp(at, Pass::backward, dx);
    stream = temporary(context_.activation.stream);
    if (head_bucket() != norm_bucket()) {
      leave(head);
      visit(norm_bucket());
    }
    wait_gradients(at, BlockKind::norm);
    const OpId norm = block(at, BlockKind::norm, Pass::backward);
    leave(norm);
    emitter_.read(dx, Use::dx);
    emitter_.read(keep.head, Use::kept);
    emitter_.write(stream, Use::stream);
    add_gradients(at, BlockKind::norm, norm);
  }
  for (int i = layers.count - 1; i >= 0; --i) {
    at.layer = layers.first + i;
    visit_layer(at.layer);
    if (offloaded(i) && !recomputed(i)) copy_in(at, keep.layers[static_cast<std::size_t>(i)]);
    layer_backward(at, keep.layers[static_cast<std::size_t>(i)], stream);
  }
  at.layer = kNone16;
  if (at.chunk != 0) return last_;
  const BufferId rows = enter_tp(at, Pass::backward, {stream, Use::stream});
  wait_gradients(at, BlockKind::embedding);
  const OpId embedding =
      emitter_.emit(op_at(at, OpRole::block, Pass::backward, works_[BlockKind::embedding][Pass::backward],
                          lane(LaneKind::compute)));
  emitter_.read(rows, Use::dout);
  add_gradients(at, BlockKind::embedding, embedding);
  stream = kNoBuffer;
  return last_ = embedding;
}

void StageLowering::weight_slot(const Slot& slot) {
  Site at{model_chunk(slot), kNone16, slot.microbatch};
  const LayerRange layers = range(at.chunk);
  SavedChunk& keep = saved(slot);
  const auto half = [&](BlockKind kind, BufferId saved_input, Range gradient) -> OpId {
    const BufferId inside = enter_tp(at, Pass::backward_weight, {saved_input, Use::kept});
    wait_gradients(at, kind);
    const OpId op = block(at, kind, Pass::backward_weight);
    if (inside != saved_input) emitter_.read(inside, Use::gathered);
    emitter_.read(saved_input, Use::kept);
    emitter_.read(gradient.buffer, gradient.use);
    add_gradients(at, kind, op);
    return op;
  };
  if (last_chunk(at.chunk)) {
    const bool reads = reads_parameters(context_.model, BlockKind::head, Pass::backward_weight);
    if (reads) visit(head_bucket());
    const OpId head = half(BlockKind::head, keep.head, {keep.logits, Use::loss});
    if (reads) leave(head);
  }
  for (int i = layers.count - 1; i >= 0; --i) {
    at.layer = layers.first + i;
    const SavedLayer& layer = keep.layers[static_cast<std::size_t>(i)];
    half(BlockKind::mlp, layer.mlp, {layer.for_mlp, Use::deferred});
    wait_gradients(at, BlockKind::attention);
    const OpId op = block(at, BlockKind::attention, Pass::backward_weight);
    emitter_.read(layer.attention, Use::kept);
    emitter_.read(layer.for_attention, Use::deferred);
    add_gradients(at, BlockKind::attention, op);
    half(BlockKind::qkv, layer.attention, {layer.for_qkv, Use::dqkv});
  }
}

}  // namespace sextant::lowering
