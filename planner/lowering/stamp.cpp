#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

// Without operands, slots of one kind and chunk differ only in their micro-batch and in what they wait for from outside,
// except the first (waits for parameter gathers), the last (starts reductions), and everything that turns in a ring.
bool StageLowering::repeatable(const Slot& slot) const {
  if (e_.operands() || c_.ring_parameters() || c_.ring_gradients() || c_.plan.activation_offload > 0)
    return false;
  return slot.microbatch > 0 && static_cast<int>(slot.microbatch) + 1 < c_.microbatches;
}

template <class Emit>
OpId StageLowering::emit_or_repeat(const Slot& slot, OpId arrival, const Emit& emit) {
  if (!repeatable(slot)) return emit();
  Stamp& stamp =
      stamps_[static_cast<std::size_t>(slot.kind) * static_cast<std::size_t>(c_.plan.vp) + slot.chunk];
  if (stamp.first == kNoOp) {
    stamp.first = e_.size();
    stamp.arrival = arrival;
    stamp.readers_before = regather_reader_;
    stamp.result = emit();
    stamp.last = e_.size();
    stamp.readers_after = regather_reader_;
    stamp.microbatch = slot.microbatch;
    return stamp.result;
  }
  if (slot.kind == SlotKind::forward) forward_start(slot) = e_.size();
  const Stamp& kept = stamps_[static_cast<std::size_t>(SlotKind::forward) + slot.chunk];
  const OpId shift = e_.size() - stamp.first;
  const auto moved = [&](OpId op) { return op != kNoOp && op >= stamp.first ? op + shift : op; };
  const std::array<OpId, 2> readers = regather_reader_;
  e_.repeat(stamp.first, stamp.last, slot.microbatch, [&](OpId dep) {
    if (dep == stamp.arrival) return arrival;
    // A backward slot may wait for what the forward of its own micro-batch kept.
    if (dep >= kept.first && dep < kept.last && slot.kind != SlotKind::forward &&
        kept.microbatch == stamp.microbatch)
      return dep - kept.first + forward_start(slot);
    return dep == stamp.readers_before[0] ? readers[0] : readers[1];
  });
  if (stamp.readers_after != stamp.readers_before)
    for (std::size_t turn = 0; turn < 2; ++turn) regather_reader_[turn] = moved(stamp.readers_after[turn]);
  return last_ = moved(stamp.result);
}

OpId StageLowering::forward(const Slot& slot, OpId arrival, BufferId& stream) {
  return emit_or_repeat(slot, arrival, [&] { return forward_slot(slot, arrival, stream); });
}

OpId StageLowering::backward(const Slot& slot, OpId arrival, BufferId& stream) {
  return emit_or_repeat(slot, arrival, [&] { return backward_slot(slot, arrival, stream); });
}

void StageLowering::weight(const Slot& slot) {
  emit_or_repeat(slot, kNoOp, [&] {
    weight_slot(slot);
    return last_;
  });
}

}  // namespace sextant::lowering
