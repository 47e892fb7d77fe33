#include <cmath>
#include <span>
#include <utility>

#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

using Use = OperandUse;

// Before the first gradient of a bucket is written: its place must have been reduced and added up. Buckets take the
// places of the ring by turns; an embedding that is the head as well has one of its own from the head's backward to its own.
void StageLowering::wait_gradients(const Site& at, BlockKind kind) {
  if (!context_.ring_gradients()) return;
  const auto [first, last] = parameters_of(at, kind);
  for (int i = first; i < last; ++i) {
    const int b = layout_.parameters[static_cast<std::size_t>(i)].bucket;
    int& slot = ring_slot_[static_cast<std::size_t>(b)];
    if (slot >= 0) continue;
    slot = b == shared_bucket_ ? kSharedSlot
                               : static_cast<int>(next_ring_slot_++ % context_.gradient_ring_count());
    emitter_.after(stage_, ring_reduced_[static_cast<std::size_t>(slot)]);
    clear_padding(b, at);
  }
}

std::int64_t StageLowering::padding(int b) const {
  std::int64_t elements = bucket(b).elements;
  for (const Parameter& p : std::span(layout_.parameters).subspan(bucket(b).first, bucket(b).count))
    elements -= p.elements;
  return elements;
}

void StageLowering::write_padding(int b, BufferId to) {
  const auto bytes = [&](std::int64_t x) {
    return std::llround(context_.state.gradient * static_cast<double>(x));
  };
  std::int64_t filled = 0;
  for (const Parameter& p : std::span(layout_.parameters).subspan(bucket(b).first, bucket(b).count)) {
    emitter_.write(to, Use::gradient, bytes(filled), bytes(p.offset));
    filled = p.offset + p.elements;
  }
  emitter_.write(to, Use::gradient, bytes(filled), bytes(bucket(b).elements));
}

Op StageLowering::clearing(std::int64_t elements) {
  Op op;
  op.role = OpRole::zero_grad;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.work = emitter_.work(
      StateWork{StateKind::zero, elements, context_.training.parameter, context_.training.gradient, false});
  op.lanes[0] = lane(LaneKind::compute);
  return op;
}

// Another bucket has used the ring buffer, and what it left in this one's padding would be summed and normed.
void StageLowering::clear_padding(int b, const Site& at) {
  const std::int64_t elements = padding(b);
  if (elements == 0) return;
  Op op = clearing(elements);
  op.bucket = static_cast<std::uint16_t>(b);
  op.microbatch = static_cast<std::uint16_t>(at.microbatch);
  emitter_.emit(op);
  if (emitter_.operands())
    write_padding(b, gradient_ring_[static_cast<std::size_t>(ring_slot_[static_cast<std::size_t>(b)])]);
}

// Resident gradients, before a step; of those that begin written only the padding, where a reduction has left a slice.
void StageLowering::clear_gradients() {
  const bool written = context_.stack.rules.gradients_begin_written;
  std::int64_t elements = layout_.padded;
  if (written) elements -= layout_.elements;
  if (!written && head_apart_) elements += layout_.parameters[static_cast<std::size_t>(embedding_)].elements;
  if (elements == 0) return;
  emitter_.emit(clearing(elements));
  if (!emitter_.operands()) return;
  for (std::size_t b = 0; b < gradient_.size(); ++b)
    written ? write_padding(static_cast<int>(b), gradient_[b]) : emitter_.write(gradient_[b], Use::gradient);
  if (!written) emitter_.write(head_gradient_, Use::gradient);
}

// The block that was emitted last writes the gradient of a parameter; where it adds to what is there, it reads it as well.
void StageLowering::write_gradient(std::size_t parameter, bool of_head) {
  const Parameter& p = layout_.parameters[parameter];
  const bool ring = context_.ring_gradients(), written = context_.stack.rules.gradients_begin_written;
  if (of_head && head_apart_) {
    if (written && std::exchange(head_begun_, true)) emitter_.read(head_gradient_, Use::gradient);
    emitter_.write(head_gradient_, Use::gradient);
    return;
  }
  const BufferId to =
      ring ? gradient_ring_[static_cast<std::size_t>(ring_slot_[p.bucket])] : gradient_[p.bucket];
  const auto begin = std::llround(context_.state.gradient * static_cast<double>(p.offset)),
             end = std::llround(context_.state.gradient * static_cast<double>(p.offset + p.elements));
  const bool adds =
      ring ? p.bucket == shared_bucket_ && remaining_[p.bucket] == 1 : written && begun_[parameter];
  begun_[parameter] = true;
  if (adds) emitter_.read(to, Use::gradient, begin, end);
  emitter_.write(to, Use::gradient, begin, end);
}

void StageLowering::add_gradients(const Site& at, BlockKind kind, OpId op) {
  const auto [first, last] = parameters_of(at, kind);
  const bool tied_head = kind == BlockKind::head && head_ < 0;  // the embedding's own backward completes it
  const bool ring = context_.ring_gradients();
  if (emitter_.operands())
    for (int i = first; i < last; ++i) write_gradient(static_cast<std::size_t>(i), tied_head);
  const bool final_pass = static_cast<int>(at.microbatch) == context_.microbatches - 1;
  if (!ring && (tied_head || !final_pass)) return;
  for (int i = first; i < last; ++i) {
    const int b = layout_.parameters[static_cast<std::size_t>(i)].bucket;
    if (--remaining_[static_cast<std::size_t>(b)] > 0) continue;
    remaining_[static_cast<std::size_t>(b)] = contributions(b);
    emitter_.hold(op);  // the next stage need not wait for what follows
    if (kind == BlockKind::embedding && head_apart_) op = join_head();
    if (b == tied_bucket_ && !ring)
      tied_ready_ = overlaps_reduction() ? op : kNoOp;
    else
      reduce_bucket(b, op, at.microbatch, final_pass);
  }
}

OpId StageLowering::join_head() {
  const Parameter& p = layout_.parameters[static_cast<std::size_t>(embedding_)];
  const auto begin = std::llround(context_.state.gradient * static_cast<double>(p.offset)),
             end = std::llround(context_.state.gradient * static_cast<double>(p.offset + p.elements));
  Op op;
  op.role = OpRole::grad_accumulate;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.bucket = static_cast<std::uint16_t>(p.bucket);
  op.work = emitter_.work(StateWork{StateKind::accumulate, p.elements, context_.training.parameter,
                                    context_.training.gradient, false});
  op.lanes[0] = lane(LaneKind::compute);
  last_ = emitter_.hold(emitter_.emit(op));
  emitter_.read(head_gradient_, Use::gradient);
  emitter_.read(gradient_[p.bucket], Use::gradient, begin, end);
  emitter_.write(gradient_[p.bucket], Use::gradient, begin, end);
  return last_;
}

BufferId StageLowering::tied_buffer() const {
  if (tied_bucket_ < 0) return kNoBuffer;
  return (context_.ring_gradients() ? accumulator_ : gradient_)[static_cast<std::size_t>(tied_bucket_)];
}

std::int64_t StageLowering::tied_elements() const {
  const Bucket& b = bucket(tied_bucket_);
  return context_.ring_gradients() ? layout_.slice(b) : layout_.parameters[b.first].elements;
}

void StageLowering::reduce_tied(OpId reduced) {
  constexpr bool kLastOfStep = true;
  if (context_.ring_gradients())
    finish_bucket(tied_bucket_, reduced);
  else
    reduce_bucket(tied_bucket_, reduced, static_cast<std::uint32_t>(context_.microbatches - 1), kLastOfStep);
}

// One step of a bucket's reduction, in place; the first on a lane of its own waits for what is `ready`.
void StageLowering::emit_reduction(Reduction& r, OpRole role, WorkId work) {
  r.op.role = role;
  r.op.work = work;
  r.done = emitter_.emit(r.op, {r.wait});
  r.wait = kNoOp;
}

// Bytes of gradients in the ring or at rest; 0 where nobody asks for ranges.
std::int64_t StageLowering::range_of_gradient(std::int64_t elements) const {
  return emitter_.operands() ? std::llround(context_.state.gradient * static_cast<double>(elements)) : 0;
}

// Gradients that are partial under SP, over the TP ranks.
void StageLowering::sum_norms(int b, Reduction& r) {
  const auto parameters = std::span(layout_.parameters).subspan(bucket(b).first, bucket(b).count);
  std::int64_t norms = 0;
  for (const Parameter& p : parameters)
    if (is_summed_over_tp(p.kind, context_.model, context_.plan)) norms += p.elements;
  if (norms == 0) return;
  emit_reduction(r, OpRole::sp_reduce,
                 emitter_.work(CollectiveWork{CollectiveKind::all_reduce,
                                              Bytes(norms * size_bytes(context_.training.gradient)),
                                              context_.links.of(stage_).tp}));
  for (const Parameter& p : parameters) {
    if (!is_summed_over_tp(p.kind, context_.model, context_.plan)) continue;
    const std::int64_t begin = range_of_gradient(p.offset), end = range_of_gradient(p.offset + p.elements);
    emitter_.read(r.gradient, Use::gradient, begin, end);
    emitter_.write(r.gradient, Use::gradient, begin, end);
  }
}

// Adds the reduced slice to that of the micro-batches before; its place in the ring is free behind that.
void StageLowering::accumulate(int b, Reduction& r) {
  const auto index = static_cast<std::size_t>(b);
  const std::int64_t slice = layout_.slice(bucket(b));
  emit_reduction(r, OpRole::grad_accumulate,
                 emitter_.work(StateWork{StateKind::accumulate, slice, context_.training.parameter,
                                         context_.training.gradient, false}));
  emitter_.read(r.gradient, Use::gradient, 0, range_of_gradient(slice));
  emitter_.write(accumulator_[index], Use::optimizer);
  if (accumulated_[index])
    emitter_.read(accumulator_[index], Use::optimizer);  // the first replaces what the last step left
  accumulated_[index] = true;
  ring_reduced_[static_cast<std::size_t>(ring_slot_[index])] =
      overlaps_reduction() ? emitter_.hold(r.done) : kNoOp;
  ring_slot_[index] = -1;
}

// What happens to a bucket once its gradients are complete: norm-weight partials over tp, the reduction over its shards,
// over replicas of the shard, and accumulation.
void StageLowering::reduce_bucket(int b, OpId ready, std::uint32_t microbatch, bool last) {
  const bool overlaps = overlaps_reduction(), ring = context_.ring_gradients();
  const bool behind_collective = b == tied_bucket_ && !ring;  // which is on this lane
  const auto index = static_cast<std::size_t>(b);
  const std::int64_t slice = layout_.slice(bucket(b));
  const StageLinks& links = context_.links.of(stage_);
  Reduction r;
  r.gradient = ring ? gradient_ring_[static_cast<std::size_t>(ring_slot_[index])] : gradient_[index];
  r.wait = overlaps && !behind_collective ? ready : kNoOp;
  r.done = ready;
  r.op.stage = static_cast<std::uint16_t>(stage_);
  r.op.bucket = static_cast<std::uint16_t>(b);
  if (ring) r.op.microbatch = static_cast<std::uint16_t>(microbatch);
  r.op.lanes[0] = lane(overlaps ? LaneKind::grad_reduce : LaneKind::compute);

  if (context_.plan.tp > 1) sum_norms(b, r);
  if (context_.plan.replicas() > 1) {
    emit_reduction(r, OpRole::grad_reduce, reduce_work_[index]);
    emitter_.read(r.gradient, Use::gradient, 0, range_of_gradient(bucket(b).elements));
    emitter_.write(r.gradient, Use::gradient, 0, range_of_gradient(slice));
  }
  if (links.replica.size > 1 && layout_.shards > 1) {
    emit_reduction(r, OpRole::grad_replica_reduce,
                   emitter_.work(CollectiveWork{CollectiveKind::all_reduce,
                                                Bytes(slice * size_bytes(context_.training.reduction)),
                                                links.replica, false}));
    emitter_.read(r.gradient, Use::gradient, 0, range_of_gradient(slice));
    emitter_.write(r.gradient, Use::gradient, 0, range_of_gradient(slice));
  }
  if (context_.sums_on_host())
    r.done = sum_on_host(b, r.done, microbatch, r.gradient);
  else if (ring)
    accumulate(b, r);
  const bool reduced_later = ring && b == tied_bucket_;
  if (last && !reduced_later) finish_bucket(b, r.done);
}

// Copies a bucket's reduced slice to the host: the first of the step to its place; the others to be added to it, which the
// launching thread waits for, and with it all compute that it has yet to launch.
OpId StageLowering::sum_on_host(int b, OpId ready, std::uint32_t microbatch, BufferId reduced) {
  const auto index = static_cast<std::size_t>(b);
  const std::int64_t slice = layout_.slice(bucket(b));
  const std::int64_t bytes = slice * size_bytes(context_.training.gradient);
  const bool first = !accumulated_[index];
  Op op;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.bucket = static_cast<std::uint16_t>(b);
  op.microbatch = static_cast<std::uint16_t>(microbatch);
  op.role = OpRole::copy_out;
  op.work = emitter_.work(CopyWork{Bytes(bytes), CopyDirection::device_to_host});
  op.lanes[0] = lane(LaneKind::device_to_host);
  OpId done = emitter_.hold(emitter_.emit(op, {ready}));
  emitter_.read(reduced, Use::gradient, 0,
                std::llround(context_.state.gradient * static_cast<double>(slice)));
  emitter_.write(first ? host_gradient_[index] : landing_, Use::gradient, 0, bytes);
  // Of the others the sum is waited for, at once.
  ring_reduced_[static_cast<std::size_t>(ring_slot_[index])] = first ? done : kNoOp;
  ring_slot_[index] = -1;
  accumulated_[index] = true;
  if (first) return done;
  op.role = OpRole::grad_accumulate;
  op.work = emitter_.work(
      StateWork{StateKind::accumulate, slice, context_.training.parameter, context_.training.gradient, true});
  op.lanes[0] = lane(LaneKind::host);
  done = emitter_.hold(emitter_.emit(op, {done}));
  emitter_.read(landing_, Use::gradient, 0, bytes);
  emitter_.read(host_gradient_[index], Use::gradient);
  emitter_.write(host_gradient_[index], Use::gradient);
  emitter_.after(stage_, done);
  return done;
}

// The squared norm of a bucket's owned slice, and the copy of what the host will update.
void StageLowering::finish_bucket(int b, OpId ready) {
  const bool on_host_lane = context_.sums_on_host(), overlaps = overlaps_reduction() || on_host_lane;
  const auto index = static_cast<std::size_t>(b);
  const BufferId owned = on_host_lane                ? host_gradient_[index]
                         : context_.ring_gradients() ? accumulator_[index]
                                                     : gradient_[index];
  const std::int64_t slice = layout_.slice(bucket(b));
  Op op;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.bucket = static_cast<std::uint16_t>(b);
  OpId done = ready;
  if (context_.stack.rules.clip_gradients) {
    op.role = OpRole::norm_partial;
    op.work = emitter_.work(StateWork{StateKind::norm, slice, context_.training.parameter,
                                      context_.training.gradient, on_host_lane});
    op.lanes[0] = lane(on_host_lane ? LaneKind::host : overlaps ? LaneKind::grad_reduce : LaneKind::compute);
    done = emitter_.emit(op, {on_host_lane ? ready : kNoOp});
    emitter_.read(owned, Use::gradient, 0,
                  on_host_lane ? slice * std::int64_t{size_bytes(context_.training.gradient)}
                               : range_of_gradient(slice));
    emitter_.write(norm_buffer_, Use::norm, std::int64_t{8} * b, std::int64_t{8} * b + 8);
    norm_partial_ = emitter_.hold(done);
    norm_overlaps_ = overlaps;
  }
  if (on_host(slice) > 0 && !on_host_lane) {
    op.role = OpRole::copy_out;
    op.work = emitter_.work(CopyWork{Bytes(on_host(slice) * size_bytes(context_.training.gradient)),
                                     CopyDirection::device_to_host});
    op.lanes[0] = lane(LaneKind::device_to_host);
    emitter_.emit(op, {done});
    emitter_.read(owned, Use::gradient, range_of_gradient(slice - on_host(slice)), range_of_gradient(slice));
    emitter_.write(host_gradient_[index], Use::gradient);
  }
}

// The global squared norm needs every stage's partials; it ends the step.
void StageLowering::norm_reduce(const std::vector<StageLowering>& all) {
  if (!context_.stack.rules.clip_gradients) return;
  Op op;
  op.role = OpRole::norm_reduce;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.lanes[0] = lane(LaneKind::compute);
  op.work = emitter_.work(CollectiveWork{CollectiveKind::all_reduce, Bytes(8), context_.links.world});
  for (const StageLowering& stage : all)
    if (&stage != this || norm_overlaps_) emitter_.after(stage_, stage.norm_partial_);
  emitter_.emit(op);
  for (const StageLowering& stage : all) emitter_.read(stage.norm_buffer_, Use::norm);
  emitter_.write(norm_total_, Use::norm);
}

}  // namespace sextant::lowering
