#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

namespace {
constexpr Pass kForward = Pass::forward;
using Use = OperandUse;
}  // namespace

bool StageLowering::recomputed(int layer_in_chunk) const {
  const Recompute& r = context_.plan.recompute;
  return r.kind == RecomputeKind::full && (r.layers < 0 || layer_in_chunk < r.layers);
}

SavedChunk& StageLowering::saved(const Slot& slot) {
  const bool shared = saved_.size() == static_cast<std::size_t>(context_.plan.vp);
  return saved_[shared ? slot.chunk
                       : slot.chunk * static_cast<std::size_t>(context_.microbatches) + slot.microbatch];
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
  const bool reads = reads_parameters(context_.model, kind, pass);
  if (reads) visit_module(at, kind);
  wait_parameters(at, kind);
  const OpId op = emitter_.emit(op_at(at, OpRole::block, pass, works_[kind][pass], lane(LaneKind::compute)));
  last_ = op;
  if (reads) read_parameters(at, kind);
  if (reads && at.layer != kNone16 && fetches_modules()) {
    // A module's norm comes first forward and last backward.
    const bool norm = kind == BlockKind::norm, product = kind == BlockKind::qkv || kind == BlockKind::mlp;
    const bool forward = pass == Pass::forward || pass == Pass::recompute;
    // Behind the GEMMs it is the other way round, and q, k and v have none.
    const bool last = context_.norms_after()
                          ? (forward ? norm || kind == BlockKind::qkv || kind == BlockKind::qk_norm : !norm)
                          : (forward ? !norm : !product);
    if (last) leave(op);
  }
  return op;
}

OpId StageLowering::tp(const Site& at, OpRole role, Pass pass, WorkId work, Range from, Range to) {
  last_ = emitter_.emit(op_at(at, role, pass, work, lane(LaneKind::compute)));
  emitter_.read(from.buffer, from.use);
  emitter_.write(to.buffer, to.use);
  return last_;
}

BufferId StageLowering::enter_tp(const Site& at, Pass pass, Range local) {
  if (!context_.sp()) return local.buffer;
  const BufferId whole = temporary(context_.activation.gathered);
  tp(at, OpRole::tp_gather, pass, works_.tp_gather, local, {whole, Use::gathered});
  return whole;
}

BufferId StageLowering::leave_tp(const Site& at, Pass pass, BufferId partial) {
  if (context_.plan.tp == 1) return partial;
  if (!context_.sp()) {
    tp(at, OpRole::tp_reduce, pass, works_.tp_reduce, {partial, Use::out}, {partial, Use::out});
    return partial;
  }
  const BufferId slice = temporary(context_.activation.stream);
  tp(at, OpRole::tp_scatter, pass, works_.tp_scatter, {partial, Use::out}, {slice, Use::branch});
  return slice;
}

// Keys and values on their way round the CP ranks, beside the attention over what has arrived. The newest op put its
// own part into `kv`.
OpId StageLowering::ring_forward(const Site& at, Pass pass, BufferId kv) {
  const std::int64_t own = context_.activation.kv_gathered / context_.plan.cp;
  emitter_.write(kv, Use::keys, 0, own);
  const OpId op =
      emitter_.emit(op_at(at, OpRole::cp_gather, pass, works_.cp_gather, lane(LaneKind::cp)), {last_});
  emitter_.read(kv, Use::keys, 0, own);
  emitter_.write(kv, Use::keys, own, context_.activation.kv_gathered);
  return op;
}

// The same again for the backward pass, and their gradients behind them. The ring begins with the attention's backward,
// when `dy` is there.
OpId StageLowering::ring_backward(const Site& at, BufferId kept, Range dy, BufferId kv, BufferId dkv) {
  emitter_.emit(op_at(at, OpRole::cp_gather, Pass::backward, works_.cp_gather_backward, lane(LaneKind::cp)),
                {last_});
  emitter_.read(kept, Use::kept);
  emitter_.read(dy.buffer, dy.use);
  emitter_.write(kv, Use::keys);
  const OpId op =
      emitter_.emit(op_at(at, OpRole::cp_scatter, Pass::backward, works_.cp_scatter, lane(LaneKind::cp)));
  emitter_.read(kv, Use::keys);
  emitter_.write(dkv, Use::dkeys);
  return op;
}

// The norm before a half-layer's GEMMs: what is pending joins the stream, whose norm they read.
void StageLowering::norm_before(const Site& at, Pass pass, BufferId kept, BufferId stream, BufferId branch) {
  block(at, BlockKind::norm, pass);
  emitter_.read(stream, Use::stream);
  emitter_.read(branch, Use::branch);
  emitter_.write(stream, Use::stream);
  emitter_.write(kept, Use::kept);
}

// The norm behind them: the branch is kept, and its norm joins the stream.
OpId StageLowering::norm_after(const Site& at, Pass pass, BufferId kept, BufferId stream, BufferId branch) {
  const OpId op = block(at, BlockKind::norm, pass);
  emitter_.read(stream, Use::stream);
  emitter_.write(stream, Use::stream);
  emitter_.read(branch, Use::branch);
  emitter_.write(branch, Use::branch);
  emitter_.write(kept, Use::kept);
  return op;
}

// The first GEMM of a half-layer, on the norm's output, or on the stream itself, of which it keeps a copy then.
OpId StageLowering::gemm_forward(const Site& at, BlockKind kind, Pass pass, BufferId kept, BufferId stream,
                                 BufferId inside) {
  const OpId op = block(at, kind, pass);
  if (context_.norms_after()) {
    emitter_.read(stream, Use::stream);
    if (inside != stream) emitter_.read(inside, Use::gathered);
  } else {
    if (inside != kept) emitter_.read(inside, Use::gathered);
    emitter_.read(kept, Use::kept);
  }
  emitter_.write(kept, Use::kept);
  return op;
}

// Norms of q and k, in what the GEMMs have kept of them. Over all heads, the TP ranks add up their squares first.
void StageLowering::qk_norm_forward(const Site& at, Pass pass, BufferId kept) {
  if (!context_.norms_qk()) return;
  if (context_.sums_qk()) {
    block(at, BlockKind::qk_sums, pass);
    emitter_.read(kept, Use::kept);
    emitter_.write(kept, Use::kept);
    tp(at, OpRole::tp_reduce, pass, works_.qk_reduce, {kept, Use::kept}, {kept, Use::kept});
  }
  block(at, BlockKind::qk_norm, pass);
  emitter_.read(kept, Use::kept);
  emitter_.write(kept, Use::kept);
}

// Forward of one decoder layer, or its repetition in the backward pass. `branch` is what the next norm adds to the
// stream; `input` keeps the layer's input for a later recomputation (kNoBuffer: not kept).
BufferId StageLowering::layer_forward(const Site& where, Pass pass, SavedLayer& kept, BufferId stream,
                                      BufferId branch, BufferId input) {
  const bool after = context_.norms_after();
  const auto gemm_input = [&](BufferId half) {
    return after ? Range{stream, Use::stream} : Range{half, Use::kept};
  };
  Site at = where;
  at.norm = NormSite::attention;
  if (!after) {
    norm_before(at, pass, kept.attention, stream, branch);
    emitter_.write(input, Use::input);
  }

  BufferId inside = enter_tp(at, pass, gemm_input(kept.attention));
  gemm_forward(at, BlockKind::qkv, pass, kept.attention, stream, inside);
  if (after) emitter_.write(input, Use::input);
  qk_norm_forward(at, pass, kept.attention);

  const BufferId kv = context_.plan.cp > 1 ? temporary(context_.activation.kv_gathered) : kNoBuffer;
  const OpId exchanged = context_.cp_ring() ? ring_forward(at, pass, kv) : kNoOp;
  if (context_.plan.cp > 1 && !context_.cp_ring())
    tp(at, OpRole::cp_gather, pass, works_.cp_gather, {kept.attention, Use::kept}, {kv, Use::keys});
  BufferId partial = temporary(context_.activation.gathered);
  block(at, BlockKind::attention, pass);
  emitter_.read(kept.attention, Use::kept);
  if (!context_.cp_ring()) emitter_.read(kv, Use::keys);
  emitter_.write(kept.attention, Use::kept);
  emitter_.write(partial, Use::out);
  emitter_.after(stage_, exchanged);  // the last part of the ring has to arrive before what follows attention
  branch = leave_tp(at, pass, partial);
  if (context_.cp_ring() && context_.plan.tp > 1) emitter_.read(kv, Use::keys);

  if (after) norm_after(at, pass, kept.attention, stream, branch);
  at.norm = NormSite::mlp;
  if (!after) norm_before(at, pass, kept.mlp, stream, branch);
  if (context_.cp_ring() && context_.plan.tp == 1) emitter_.read(kv, Use::keys);

  inside = enter_tp(at, pass, gemm_input(kept.mlp));
  partial = temporary(context_.activation.gathered);
  kept.kept_by = gemm_forward(at, BlockKind::mlp, pass, kept.mlp, stream, inside);
  emitter_.write(partial, Use::out);
  if (after) {
    branch = leave_tp(at, pass, partial);
    kept.kept_by = norm_after(at, pass, kept.mlp, stream, branch);
  }
  // Only the first two gathers of a backward slot find nothing newer to wait for.
  if (context_.sp() &&
      (pass == Pass::recompute || at.layer == range(at.chunk).first + range(at.chunk).count - 1))
    emitter_.hold(kept.kept_by);
  if (pass == kForward) leave(kept.kept_by);
  return after ? kNoBuffer : leave_tp(at, pass, partial);
}

// The rows of a micro-batch's tokens, summed over the TP ranks: the stream that they begin.
BufferId StageLowering::embedding_forward(const Site& at) {
  visit(layout_.parameters[static_cast<std::size_t>(embedding_)].bucket);
  const BufferId rows =
      temporary(context_.plan.tp > 1 ? context_.activation.gathered : context_.activation.stream);
  leave(block(at, BlockKind::embedding, kForward));
  emitter_.write(rows, Use::out);
  return leave_tp(at, kForward, rows);
}

// Where a layer's saved activations lie: temporary where they are recomputed, in the ring of layers where they are offloaded,
// whose place is returned then.
StageLowering::RingedLayer* StageLowering::place_saved(int layer_in_chunk, SavedLayer& layer) {
  const auto activation = [&](std::int64_t bytes) {
    return emitter_.buffer(BufferKind::activation, stage_, bytes);
  };
  const bool again = recomputed(layer_in_chunk);
  if (again) {
    layer.input = activation(context_.activation.saved_input);
    layer.attention = temporary(context_.activation.again_attention);
    layer.mlp = temporary(context_.activation.again_mlp);
    return nullptr;
  }
  if (!offloaded(layer_in_chunk)) {
    layer.attention = activation(context_.activation.saved_attention);
    layer.mlp = activation(context_.activation.saved_mlp);
    return nullptr;
  }
  RingedLayer& place = next_place();
  layer.attention = place.attention;
  layer.mlp = place.mlp;
  // What has come back since was copied out before: compute is behind it already.
  const bool is_copy =
      place.reader != kNoOp && emitter_.lane_at(stage_, place.reader) == lane(LaneKind::device_to_host);
  if (!is_copy || copied_back_ == kNoOp || place.reader > copied_back_) emitter_.after(stage_, place.reader);
  return &place;
}

// Final norm, logits and loss.
void StageLowering::head_forward(Site at, SavedChunk& keep, BufferId stream, BufferId branch) {
  visit(norm_bucket());
  keep.head = emitter_.buffer(BufferKind::activation, stage_, context_.activation.saved_head);
  keep.logits = emitter_.buffer(BufferKind::logits, stage_, context_.activation.logits);
  at.norm = NormSite::final;
  const OpId norm = emitter_.hold(block(at, BlockKind::norm, kForward));
  emitter_.read(stream, Use::stream);
  emitter_.read(branch, Use::branch);
  emitter_.write(keep.head, Use::kept);
  const BufferId inside = enter_tp(at, kForward, {keep.head, Use::kept});
  if (head_bucket() != norm_bucket()) {
    leave(norm);
    visit(head_bucket());
  }
  leave(block(at, BlockKind::head, kForward));
  emitter_.read(inside, inside == keep.head ? Use::kept : Use::gathered);
  emitter_.write(keep.logits, Use::loss);
  if (context_.plan.tp == 1) return;
  keep.stats = temporary(context_.activation.loss_stats);
  tp(at, OpRole::tp_gather, kForward, works_.loss_gather, {keep.logits, Use::loss}, {keep.stats, Use::stats});
}

OpId StageLowering::forward_slot(const Slot& slot, OpId arrival, BufferId& stream) {
  Site at{model_chunk(slot), kNone16, slot.microbatch};
  const LayerRange layers = range(at.chunk);
  SavedChunk& keep = saved(slot);
  keep.layers.resize(static_cast<std::size_t>(layers.count));
  BufferId branch = kNoBuffer;
  module_ = -1;
  emitter_.after(stage_, arrival);
  if (slot.microbatch > 0 && context_.gathers_again()) gather_again();

  if (at.chunk == 0) stream = embedding_forward(at);
  for (int i = 0; i < layers.count; ++i) {
    at.layer = layers.first + i;
    visit_layer(at.layer);
    SavedLayer& layer = keep.layers[static_cast<std::size_t>(i)];
    RingedLayer* const place = place_saved(i, layer);
    branch = layer_forward(at, kForward, layer, stream, branch, layer.input);
    if (place) place->reader = emitter_.hold(copy_out(at, layer, last_));
  }
  at.layer = kNone16;
  if (last_chunk(at.chunk)) {
    head_forward(at, keep, stream, branch);
    stream = kNoBuffer;
    return last_;
  }
  if (context_.norms_after()) return last_;  // nothing is pending
  block(at, BlockKind::residual, kForward);
  emitter_.read(stream, Use::stream);
  emitter_.read(branch, Use::branch);
  emitter_.write(stream, Use::stream);
  return last_;
}

// Saved activations rest on the host: out behind the forward, back `offload_horizon` layers ahead of their use. On the device
// they lie in a ring: a forward that is faster than the copies out waits for them.
StageLowering::RingedLayer& StageLowering::next_place() {
  return layer_ring_[next_place_++ % layer_ring_.size()];
}

OpId StageLowering::copy_out(const Site& at, SavedLayer& layer, OpId after) {
  layer.host = emitter_.buffer(BufferKind::host, stage_,
                               context_.activation.saved_attention + context_.activation.saved_mlp);
  layer.copied_out = emitter_.emit(
      op_at(at, OpRole::copy_out, kForward, works_.copy_out, lane(LaneKind::device_to_host)), {after});
  emitter_.read(layer.attention, Use::kept);
  emitter_.read(layer.mlp, Use::kept);
  emitter_.write(layer.host, Use::activation);
  return layer.copied_out;
}

void StageLowering::copy_in(const Site& at, SavedLayer& layer) {
  const RingedLayer& place = next_place();
  layer.attention = place.attention;
  layer.mlp = place.mlp;
  // Behind the copy out it is behind the layer's forward.
  const bool is_older =
      place.reader == kNoOp ||
      (place.reader < layer.kept_by && emitter_.lane_at(stage_, place.reader) == lane(LaneKind::compute));
  layer.copied_after = is_older ? layer.kept_by : place.reader;
  layer.copied_in = emitter_.emit(
      op_at(at, OpRole::copy_in, Pass::backward, works_.copy_in, lane(LaneKind::host_to_device)),
      {layer.copied_out, is_older ? kNoOp : place.reader});
  copied_back_ = copied_back_ == kNoOp ? layer.copied_out : std::max(copied_back_, layer.copied_out);
  emitter_.read(layer.host, Use::activation);
  emitter_.write(layer.attention, Use::kept);
  emitter_.write(layer.mlp, Use::kept);
  const bool regathered = context_.sp() && !context_.split_backward();
  if (!regathered)
    emitter_.after(stage_, layer.copied_in);  // else compute waits for the gather that waits for the copy
}

}  // namespace sextant::lowering
