#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

namespace {
constexpr Pass kForward = Pass::forward;
using Use = OperandUse;
}  // namespace

bool StageLowering::recomputed(int layer_in_chunk) const {
  const Recompute& r = c_.plan.recompute;
  return r.kind == RecomputeKind::full && (r.layers < 0 || layer_in_chunk < r.layers);
}

SavedChunk& StageLowering::saved(const Slot& slot) {
  const bool shared = saved_.size() == static_cast<std::size_t>(c_.plan.vp);
  return saved_[shared ? slot.chunk
                       : slot.chunk * static_cast<std::size_t>(c_.microbatches) + slot.microbatch];
}

Op StageLowering::op_at(const Site& at, OpRole role, Pass pass, WorkId work, LaneId on) const {
  Op op;
  op.role = role;
  op.pass = pass;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.chunk = static_cast<std::uint16_t>(at.chunk);
  op.layer = static_cast<std::uint16_t>(at.layer);
  op.microbatch = static_cast<std::uint16_t>(at.microbatch);
  op.work = work;
  op.lanes[0] = on;
  return op;
}

OpId StageLowering::block(const Site& at, BlockKind kind, Pass pass) {
  const bool reads = pass != Pass::backward_weight;
  if (reads) visit_module(at, kind);
  wait_parameters(at, kind);
  const OpId op = e_.emit(op_at(at, OpRole::block, pass, w_[kind][pass], lane(LaneKind::compute)));
  last_ = op;
  if (reads) read_parameters(at, kind);
  if (reads && at.layer != kNone16 && fetches_modules()) {
    // A module's norm comes first forward and last backward.
    const bool norm = kind == BlockKind::norm, product = kind == BlockKind::qkv || kind == BlockKind::mlp;
    const bool forward = pass == Pass::forward || pass == Pass::recompute;
    // Behind the products it is the other way round, and q, k and v have none.
    const bool last =
        c_.norms_after() ? (forward ? norm || kind == BlockKind::qkv : !norm) : (forward ? !norm : !product);
    if (last) leave(op);
  }
  return op;
}

OpId StageLowering::tp(const Site& at, OpRole role, Pass pass, WorkId work, Range from, Range to) {
  last_ = e_.emit(op_at(at, role, pass, work, lane(LaneKind::compute)));
  e_.read(from.buffer, from.use);
  e_.write(to.buffer, to.use);
  return last_;
}

BufferId StageLowering::enter_tp(const Site& at, Pass pass, Range local) {
  if (!c_.sp()) return local.buffer;
  const BufferId whole = temporary(c_.activation.gathered);
  tp(at, OpRole::tp_gather, pass, w_.tp_gather, local, {whole, Use::gathered});
  return whole;
}

BufferId StageLowering::leave_tp(const Site& at, Pass pass, BufferId partial) {
  if (c_.plan.tp == 1) return partial;
  if (!c_.sp()) {
    tp(at, OpRole::tp_reduce, pass, w_.tp_reduce, {partial, Use::out}, {partial, Use::out});
    return partial;
  }
  const BufferId slice = temporary(c_.activation.stream);
  tp(at, OpRole::tp_scatter, pass, w_.tp_scatter, {partial, Use::out}, {slice, Use::branch});
  return slice;
}

// Keys and values on their way round the CP ranks, beside the attention over what has arrived. `qkv`, the newest op, put its
// own part into `kv`.
OpId StageLowering::ring_forward(const Site& at, Pass pass, BufferId kv) {
  const std::int64_t own = c_.activation.kv_gathered / c_.plan.cp;
  e_.write(kv, Use::keys, 0, own);
  const OpId op = e_.emit(op_at(at, OpRole::cp_gather, pass, w_.cp_gather, lane(LaneKind::cp)), {last_});
  e_.read(kv, Use::keys, 0, own), e_.write(kv, Use::keys, own, c_.activation.kv_gathered);
  return op;
}

// The same again for the backward pass, and their gradients behind them. The ring begins with the attention's backward,
// when `dy` is there.
OpId StageLowering::ring_backward(const Site& at, BufferId kept, Range dy, BufferId kv, BufferId dkv) {
  e_.emit(op_at(at, OpRole::cp_gather, Pass::backward, w_.cp_gather_backward, lane(LaneKind::cp)), {last_});
  e_.read(kept, Use::kept), e_.read(dy.buffer, dy.use), e_.write(kv, Use::keys);
  const OpId op = e_.emit(op_at(at, OpRole::cp_scatter, Pass::backward, w_.cp_scatter, lane(LaneKind::cp)));
  e_.read(kv, Use::keys), e_.write(dkv, Use::dkeys);
  return op;
}

// The norm before a half-layer's products: what is pending joins the stream, whose norm they read.
void StageLowering::norm_before(const Site& at, Pass pass, BufferId kept, BufferId stream, BufferId branch) {
  block(at, BlockKind::norm, pass);
  e_.read(stream, Use::stream), e_.read(branch, Use::branch), e_.write(stream, Use::stream);
  e_.write(kept, Use::kept);
}

// The norm behind them: the branch is kept, and its norm joins the stream.
OpId StageLowering::norm_after(const Site& at, Pass pass, BufferId kept, BufferId stream, BufferId branch) {
  const OpId op = block(at, BlockKind::norm, pass);
  e_.read(stream, Use::stream), e_.write(stream, Use::stream);
  e_.read(branch, Use::branch), e_.write(branch, Use::branch);
  e_.write(kept, Use::kept);
  return op;
}

// The first product of a half-layer, on the norm's output, or on the stream itself, of which it keeps a copy then.
OpId StageLowering::product_forward(const Site& at, BlockKind kind, Pass pass, BufferId kept, BufferId stream,
                                    BufferId inside) {
  const OpId op = block(at, kind, pass);
  if (c_.norms_after()) {
    e_.read(stream, Use::stream);
    if (inside != stream) e_.read(inside, Use::gathered);
  } else {
    if (inside != kept) e_.read(inside, Use::gathered);
    e_.read(kept, Use::kept);
  }
  e_.write(kept, Use::kept);
  return op;
}

// Forward of one decoder layer, or its repetition in the backward pass. `branch` is what the next norm adds to the
// stream; `input` keeps the layer's input for a later recomputation (kNoBuffer: not kept).
BufferId StageLowering::layer_forward(const Site& where, Pass pass, SavedLayer& kept, BufferId stream,
                                      BufferId branch, BufferId input) {
  const bool after = c_.norms_after();
  const auto product_input = [&](BufferId half) {
    return after ? Range{stream, Use::stream} : Range{half, Use::kept};
  };
  Site at = where;
  at.norm = NormSite::attention;
  if (!after) {
    norm_before(at, pass, kept.attention, stream, branch);
    e_.write(input, Use::input);
  }

  BufferId inside = enter_tp(at, pass, product_input(kept.attention));
  product_forward(at, BlockKind::qkv, pass, kept.attention, stream, inside);
  if (after) e_.write(input, Use::input);

  const BufferId kv = c_.plan.cp > 1 ? temporary(c_.activation.kv_gathered) : kNoBuffer;
  const OpId exchanged = c_.cp_ring() ? ring_forward(at, pass, kv) : kNoOp;
  if (c_.plan.cp > 1 && !c_.cp_ring())
    tp(at, OpRole::cp_gather, pass, w_.cp_gather, {kept.attention, Use::kept}, {kv, Use::keys});
  BufferId partial = temporary(c_.activation.gathered);
  block(at, BlockKind::attention, pass);
  e_.read(kept.attention, Use::kept);
  if (!c_.cp_ring()) e_.read(kv, Use::keys);
  e_.write(kept.attention, Use::kept), e_.write(partial, Use::out);
  e_.after(stage_, exchanged);  // the last part of the ring has to arrive before what follows attention
  branch = leave_tp(at, pass, partial);
  if (c_.cp_ring() && c_.plan.tp > 1) e_.read(kv, Use::keys);

  if (after) norm_after(at, pass, kept.attention, stream, branch);
  at.norm = NormSite::mlp;
  if (!after) norm_before(at, pass, kept.mlp, stream, branch);
  if (c_.cp_ring() && c_.plan.tp == 1) e_.read(kv, Use::keys);

  inside = enter_tp(at, pass, product_input(kept.mlp));
  partial = temporary(c_.activation.gathered);
  kept.kept_by = product_forward(at, BlockKind::mlp, pass, kept.mlp, stream, inside);
  e_.write(partial, Use::out);
  if (after) {
    branch = leave_tp(at, pass, partial);
    kept.kept_by = norm_after(at, pass, kept.mlp, stream, branch);
  }
  // Only the first two gathers of a backward slot find nothing newer to wait for.
  if (c_.sp() && (pass == Pass::recompute || at.layer == range(at.chunk).first + range(at.chunk).count - 1))
    e_.hold(kept.kept_by);
  if (pass == kForward) leave(kept.kept_by);
  return after ? kNoBuffer : leave_tp(at, pass, partial);
}

OpId StageLowering::forward_slot(const Slot& slot, OpId arrival, BufferId& stream) {
  Site at{model_chunk(slot), kNone16, slot.microbatch};
  const LayerRange layers = range(at.chunk);
  SavedChunk& keep = saved(slot);
  keep.layers.resize(static_cast<std::size_t>(layers.count));
  const auto activation = [&](std::int64_t bytes) {
    return e_.buffer(BufferKind::activation, stage_, bytes);
  };
  BufferId branch = kNoBuffer;
  module_ = -1;
  e_.after(stage_, arrival);
  if (slot.microbatch > 0 && c_.gathers_again()) gather_again();

  if (at.chunk == 0) {
    visit(layout_.parameters[static_cast<std::size_t>(embedding_)].bucket);
    BufferId rows = temporary(c_.plan.tp > 1 ? c_.activation.gathered : c_.activation.stream);
    leave(block(at, BlockKind::embedding, kForward));
    e_.write(rows, Use::out);
    stream = leave_tp(at, kForward, rows);
  }
  for (int i = 0; i < layers.count; ++i) {
    at.layer = layers.first + i;
    visit_layer(at.layer);
    SavedLayer& layer = keep.layers[static_cast<std::size_t>(i)];
    const bool again = recomputed(i);
    if (again) layer.input = activation(c_.activation.saved_input);
    RingedLayer* const place = !again && offloaded(i) ? &next_place() : nullptr;
    if (place) {
      layer.attention = place->attention, layer.mlp = place->mlp;
      // What has come back since was copied out before: compute is behind it already.
      const bool is_copy =
          place->reader != kNoOp && e_.lane_at(stage_, place->reader) == lane(LaneKind::device_to_host);
      if (!is_copy || copied_back_ == kNoOp || place->reader > copied_back_) e_.after(stage_, place->reader);
    } else {
      layer.attention =
          again ? temporary(c_.activation.again_attention) : activation(c_.activation.saved_attention);
      layer.mlp = again ? temporary(c_.activation.again_mlp) : activation(c_.activation.saved_mlp);
    }
    branch = layer_forward(at, kForward, layer, stream, branch, layer.input);
    if (place) place->reader = e_.hold(copy_out(at, layer, last_));
  }
  at.layer = kNone16;
  if (!last_chunk(at.chunk)) {
    if (c_.norms_after()) return last_;  // nothing is pending
    block(at, BlockKind::residual, kForward);
    e_.read(stream, Use::stream), e_.read(branch, Use::branch), e_.write(stream, Use::stream);
    return last_;
  }
  visit(norm_bucket());
  keep.head = activation(c_.activation.saved_head);
  keep.logits = e_.buffer(BufferKind::logits, stage_, c_.activation.logits);
  at.norm = NormSite::final;
  const OpId norm = e_.hold(block(at, BlockKind::norm, kForward));
  e_.read(stream, Use::stream), e_.read(branch, Use::branch), e_.write(keep.head, Use::kept);
  const BufferId inside = enter_tp(at, kForward, {keep.head, Use::kept});
  if (head_bucket() != norm_bucket()) leave(norm), visit(head_bucket());
  leave(block(at, BlockKind::head, kForward));
  e_.read(inside, inside == keep.head ? Use::kept : Use::gathered), e_.write(keep.logits, Use::loss);
  if (c_.plan.tp > 1) {
    keep.stats = temporary(c_.activation.loss_stats);
    tp(at, OpRole::tp_gather, kForward, w_.loss_gather, {keep.logits, Use::loss}, {keep.stats, Use::stats});
  }
  stream = kNoBuffer;
  return last_;
}

// Under SP the input of a column-parallel product is kept as a slice and gathered again for its weight gradient, one
// half-layer ahead on the tp lane (Megatron hides it behind the data gradient).
OpId StageLowering::regather(const Site& at, const SavedLayer& layer, BufferId saved_input) {
  const std::size_t turn = next_regather_++ % 2;
  // Behind the op that kept its input and the one that last read its buffer: both are on the compute lane, where the newer
  // stands for both. What was offloaded stands behind its copy back, which may have waited for either.
  const bool fetched = layer.copied_in != kNoOp;
  OpId wait = fetched ? layer.copied_after : layer.kept_by;
  if (regather_reader_[turn] != kNoOp) wait = std::max(wait, regather_reader_[turn]);
  const OpId op = e_.emit(op_at(at, OpRole::tp_gather, Pass::backward, w_.tp_gather, lane(LaneKind::tp)),
                          {fetched && wait == layer.copied_after ? kNoOp : wait, layer.copied_in});
  e_.read(saved_input, Use::kept), e_.write(regathered_[turn], Use::gathered);
  return op;
}

void StageLowering::regather_read(OpId reader) {
  const std::size_t turn = (next_regather_ - 1) % 2;
  e_.read(regathered_[turn], Use::gathered);
  regather_reader_[turn] = e_.hold(reader);
}

// Backward of the product that reads a norm's output (mlp, or qkv), and of the norm, which adds to the stream's gradient.
// `ahead` gathers the product's input again; a split backward keeps what the product read in `kept` for its weight half.
OpId StageLowering::product_backward(const Site& at, BlockKind kind, std::initializer_list<Range> gradients,
                                     BufferId saved, BufferId stream, OpId ahead, BufferId* kept) {
  const bool split = c_.split_backward();
  BufferId dx = temporary(c_.activation.gathered);
  if (!split) wait_gradients(at, kind);
  e_.after(stage_, ahead);
  const OpId op = block(at, kind, split ? Pass::backward_input : Pass::backward);
  for (const Range& gradient : gradients) e_.read(gradient.buffer, gradient.use);
  e_.read(saved, Use::kept), e_.write(dx, Use::dx);
  if (ahead != kNoOp) regather_read(op);
  if (!split) add_gradients(at, kind, op);
  if (split && kept) {
    *kept = e_.buffer(BufferKind::activation, stage_, c_.activation.deferred_mlp);
    e_.write(*kept, Use::deferred);
  }
  dx = leave_tp(at, Pass::backward, dx);
  if (c_.norms_after()) {
    const OpId sum = block(at, BlockKind::residual, Pass::backward);
    if (c_.ring_parameters() || !layer_ring_.empty()) e_.hold(sum);
    e_.read(dx, Use::dx), e_.read(stream, Use::stream), e_.write(stream, Use::stream);
    return sum;
  }
  wait_gradients(at, BlockKind::norm);
  const OpId norm = block(at, BlockKind::norm, Pass::backward);
  if (c_.ring_parameters() || !layer_ring_.empty()) e_.hold(norm);  // rings turn when it is done
  e_.read(dx, Use::dx), e_.read(saved, Use::kept);
  e_.read(stream, Use::stream), e_.write(stream, Use::stream);
  add_gradients(at, BlockKind::norm, norm);
  return norm;
}

// The gradient of a branch from that of the stream, where its norm stands behind it; else they are the same.
StageLowering::Range StageLowering::branch_gradient(const Site& at, BufferId saved, BufferId stream) {
  if (!c_.norms_after()) return {stream, Use::stream};
  const BufferId branch = temporary(c_.activation.stream);
  wait_gradients(at, BlockKind::norm);
  const OpId norm = block(at, BlockKind::norm, Pass::backward);
  e_.read(stream, Use::stream), e_.read(saved, Use::kept), e_.write(branch, Use::branch);
  add_gradients(at, BlockKind::norm, norm);
  return {branch, Use::branch};
}

void StageLowering::mlp_backward(Site at, SavedLayer& layer, BufferId stream) {
  at.norm = NormSite::mlp;
  const Range branch = branch_gradient(at, layer.mlp, stream);
  const bool regathered = c_.sp() && !c_.split_backward();
  const OpId ahead = regathered ? regather(at, layer, layer.mlp) : kNoOp;
  const BufferId dy = enter_tp(at, Pass::backward, branch);
  product_backward(at, BlockKind::mlp, {{dy, Use::dout}}, layer.mlp, stream, ahead, &layer.for_mlp);
}

void StageLowering::attention_backward(Site at, SavedLayer& layer, BufferId stream) {
  const bool split = c_.split_backward();
  at.norm = NormSite::attention;
  const Range branch = branch_gradient(at, layer.attention, stream);
  const bool regathered = c_.sp() && !split;
  const OpId ahead = regathered ? regather(at, layer, layer.attention) : kNoOp;
  const BufferId dy = enter_tp(at, Pass::backward, branch);
  BufferId kv = kNoBuffer, dkv = kNoBuffer;
  if (c_.plan.cp > 1) {
    kv = temporary(c_.activation.kv_gathered);
    dkv = temporary(c_.activation.kv_gathered);
    if (!c_.cp_ring())
      tp(at, OpRole::cp_gather, Pass::backward, w_.cp_gather, {layer.attention, Use::kept}, {kv, Use::keys});
  }
  const Range begins{dy, c_.sp() ? Use::dout : branch.use};
  const OpId exchanged = c_.cp_ring() ? ring_backward(at, layer.attention, begins, kv, dkv) : kNoOp;
  const BufferId dqkv = split ? e_.buffer(BufferKind::activation, stage_, c_.activation.qkv_gradient)
                              : temporary(c_.activation.qkv_gradient);
  if (!split) wait_gradients(at, BlockKind::attention);
  const OpId core = block(at, BlockKind::attention, split ? Pass::backward_input : Pass::backward);
  e_.read(dy, Use::dout), e_.read(layer.attention, Use::kept);
  e_.write(dqkv, Use::dqkv);
  if (!c_.cp_ring()) e_.read(kv, Use::keys), e_.write(dkv, Use::dkeys);
  if (split) {
    layer.for_attention = e_.buffer(BufferKind::activation, stage_, c_.activation.deferred_attention);
    layer.for_qkv = dqkv;
    e_.write(layer.for_attention, Use::deferred);
  } else {
    add_gradients(at, BlockKind::attention, core);
  }
  if (c_.plan.cp > 1 && !c_.cp_ring())
    tp(at, OpRole::cp_scatter, Pass::backward, w_.cp_scatter, {dkv, Use::dkeys}, {dqkv, Use::dqkv});
  e_.after(stage_, exchanged);
  const Range arrived{c_.cp_ring() ? kv : kNoBuffer, Use::keys},
      summed{c_.cp_ring() ? dkv : kNoBuffer, Use::dkeys};
  const OpId norm = product_backward(at, BlockKind::qkv, {{dqkv, Use::dqkv}, arrived, summed},
                                     layer.attention, stream, ahead, nullptr);
  leave(norm);
  if (layer.copied_in != kNoOp) layer_ring_[(next_place_ - 1) % layer_ring_.size()].reader = e_.hold(norm);
}

void StageLowering::layer_backward(const Site& at, SavedLayer& layer, BufferId stream) {
  const bool again = recomputed(at.layer - range(at.chunk).first);
  if (again) {
    // The layer's forward once more, from its kept input, into temporaries that this backward consumes.
    layer.attention = temporary(c_.activation.again_attention);
    layer.mlp = temporary(c_.activation.again_mlp);
    layer_forward(at, Pass::recompute, layer, layer.input, kNoBuffer, kNoBuffer);
  }
  mlp_backward(at, layer, stream);
  attention_backward(at, layer, stream);
}

OpId StageLowering::backward_slot(const Slot& slot, OpId arrival, BufferId& stream) {
  Site at{model_chunk(slot), kNone16, slot.microbatch};
  const LayerRange layers = range(at.chunk);
  SavedChunk& keep = saved(slot);
  const bool split = c_.split_backward();
  module_ = -1;
  e_.after(stage_, arrival);

  if (last_chunk(at.chunk)) {
    visit(head_bucket());
    at.norm = NormSite::final;
    const BufferId inside = enter_tp(at, Pass::backward, {keep.head, Use::kept});
    BufferId dx = temporary(c_.activation.gathered);
    if (!split) wait_gradients(at, BlockKind::head);
    const OpId head = e_.hold(block(at, BlockKind::head, split ? Pass::backward_input : Pass::backward));
    e_.read(keep.logits, Use::loss), e_.read(keep.stats, Use::stats);
    e_.read(inside, inside == keep.head ? Use::kept : Use::gathered), e_.write(dx, Use::dx);
    if (split) {
      e_.write(keep.logits, Use::loss);  // now the gradient of the logits, for the weight half
    } else {
      add_gradients(at, BlockKind::head, head);
    }
    dx = leave_tp(at, Pass::backward, dx);
    stream = temporary(c_.activation.stream);
    if (head_bucket() != norm_bucket()) leave(head), visit(norm_bucket());
    wait_gradients(at, BlockKind::norm);
    const OpId norm = block(at, BlockKind::norm, Pass::backward);
    leave(norm);
    e_.read(dx, Use::dx), e_.read(keep.head, Use::kept), e_.write(stream, Use::stream);
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
  const OpId embedding = e_.emit(op_at(at, OpRole::block, Pass::backward,
                                       w_[BlockKind::embedding][Pass::backward], lane(LaneKind::compute)));
  e_.read(rows, Use::dout);
  add_gradients(at, BlockKind::embedding, embedding);
  stream = kNoBuffer;
  return last_ = embedding;
}

void StageLowering::weight_slot(const Slot& slot) {
  Site at{model_chunk(slot), kNone16, slot.microbatch};
  const LayerRange layers = range(at.chunk);
  SavedChunk& keep = saved(slot);
  const auto half = [&](BlockKind kind, BufferId saved_input, Range gradient) {
    const BufferId inside = enter_tp(at, Pass::backward_weight, {saved_input, Use::kept});
    wait_gradients(at, kind);
    const OpId op = block(at, kind, Pass::backward_weight);
    if (inside != saved_input) e_.read(inside, Use::gathered);
    e_.read(saved_input, Use::kept);
    e_.read(gradient.buffer, gradient.use);
    add_gradients(at, kind, op);
  };
  if (last_chunk(at.chunk)) half(BlockKind::head, keep.head, {keep.logits, Use::loss});
  for (int i = layers.count - 1; i >= 0; --i) {
    at.layer = layers.first + i;
    const SavedLayer& layer = keep.layers[static_cast<std::size_t>(i)];
    half(BlockKind::mlp, layer.mlp, {layer.for_mlp, Use::deferred});
    wait_gradients(at, BlockKind::attention);
    const OpId op = block(at, BlockKind::attention, Pass::backward_weight);
    e_.read(layer.attention, Use::kept), e_.read(layer.for_attention, Use::deferred);
    add_gradients(at, BlockKind::attention, op);
    half(BlockKind::qkv, layer.attention, {layer.for_qkv, Use::dqkv});
  }
}

// Saved activations rest on the host: out behind the forward, back `offload_horizon` layers ahead of their use. On the device
// they lie in a ring: a forward that is faster than the copies out waits for them.
StageLowering::RingedLayer& StageLowering::next_place() {
  return layer_ring_[next_place_++ % layer_ring_.size()];
}

OpId StageLowering::copy_out(const Site& at, SavedLayer& layer, OpId after) {
  layer.host = e_.buffer(BufferKind::host, stage_, c_.activation.saved_attention + c_.activation.saved_mlp);
  layer.copied_out =
      e_.emit(op_at(at, OpRole::copy_out, kForward, w_.copy_out, lane(LaneKind::device_to_host)), {after});
  e_.read(layer.attention, Use::kept), e_.read(layer.mlp, Use::kept), e_.write(layer.host, Use::activation);
  return layer.copied_out;
}

void StageLowering::copy_in(const Site& at, SavedLayer& layer) {
  const RingedLayer& place = next_place();
  layer.attention = place.attention, layer.mlp = place.mlp;
  // Behind the copy out it is behind the layer's forward.
  const bool is_older =
      place.reader == kNoOp ||
      (place.reader < layer.kept_by && e_.lane_at(stage_, place.reader) == lane(LaneKind::compute));
  layer.copied_after = is_older ? layer.kept_by : place.reader;
  layer.copied_in =
      e_.emit(op_at(at, OpRole::copy_in, Pass::backward, w_.copy_in, lane(LaneKind::host_to_device)),
              {layer.copied_out, is_older ? kNoOp : place.reader});
  copied_back_ = copied_back_ == kNoOp ? layer.copied_out : std::max(copied_back_, layer.copied_out);
  e_.read(layer.host, Use::activation), e_.write(layer.attention, Use::kept), e_.write(layer.mlp, Use::kept);
  const bool regathered = c_.sp() && !c_.split_backward();
  if (!regathered)
    e_.after(stage_, layer.copied_in);  // else compute waits for the gather that waits for the copy
}

}  // namespace sextant::lowering
