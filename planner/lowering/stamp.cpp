// Without operands, slots of one kind and chunk differ only in their micro-batch and in what they wait for from outside,
// except the first forward (waits for the step's update) and the last backward (ends it). What a slot finds is compared with what an
// earlier one found: the same kinds of operations, of the same relative age, waited for by the same lanes already. Then
// it would emit the same, and is copied instead. In a folded graph, which keeps no names, inner chunks of equally many
// layers are alike whatever their stage. tests/planner/lowering/stamp_test.cpp compares whole graphs.
#include <algorithm>
#include <array>
#include <numeric>

#include "planner/lowering/stage.hpp"

namespace sextant::lowering {
namespace {

constexpr std::size_t kMostStamps = 8;  // forms of one slot: while the pipeline fills, steady, drains

LaneId lane_of(std::uint64_t told) { return static_cast<LaneId>(told); }

}  // namespace

// Transfers between stages are emitted behind the slots.
std::vector<LaneKind> StageLowering::lanes_of_slots(const Context& c) {
  std::vector<LaneKind> lanes{LaneKind::compute, LaneKind::grad_reduce, LaneKind::param_gather};
  if (c.sp()) lanes.push_back(LaneKind::tp);
  if (c.plan.cp > 1) lanes.push_back(LaneKind::cp);
  if (c.plan.optimizer_offload > 0 || c.plan.parameter_offload || c.plan.activation_offload > 0 ||
      c.sums_on_host())
    lanes.insert(lanes.end(), {LaneKind::device_to_host, LaneKind::host_to_device});
  return lanes;
}

bool StageLowering::repeatable(const Slot& slot) const {
  if (slot.kind == SlotKind::forward) return slot.microbatch > 0;
  // Sums on the host: the first micro-batch has none, and a wait for the last of a slot outlives it.
  return static_cast<int>(slot.microbatch) + 1 < context_.microbatches && !context_.sums_on_host();
}

std::vector<StageLowering::Stamp>& StageLowering::stamps_of(SlotKind kind, const Slot& slot) {
  const std::size_t place =
      static_cast<std::size_t>(kind) * static_cast<std::size_t>(context_.plan.vp) + slot.chunk;
  if (std::vector<Stamp>* known = shared_stamps_[place]) return *known;
  const int chunk = model_chunk(slot);
  if (alike_ && chunk > 0 && !last_chunk(chunk))
    return *(shared_stamps_[place] = &(*alike_)[{kind, range(chunk).count}]);
  return own_stamps_[place];
}

// Every operation that the rings hold which slots of the kind use, in the order of their turns, and what is known of
// units [first, last).
template <class Visit>
void StageLowering::each_waited(SlotKind kind, const Turns& at, std::size_t first_unit, std::size_t last_unit,
                                const Visit& visit) {
  for (std::size_t unit = first_unit; unit < last_unit; ++unit) {
    visit(visits_[unit].wait);
    visit(visits_[unit].gather);
    visit(visits_[unit].last_reader);
  }
  if (!layer_ring_.empty() && kind != SlotKind::weight) {
    for (std::size_t turn = 0; turn < layer_ring_.size(); ++turn)
      visit(layer_ring_[(at.copy + turn) % layer_ring_.size()].reader);
    visit(copied_back_);
  }
  if (kind == SlotKind::forward) return;
  for (std::size_t turn = 0; context_.sp() && turn < 2; ++turn)
    visit(regather_reader_[(at.regather + turn) % 2]);
  const std::size_t places = context_.ring_gradients() ? context_.gradient_ring_count() : 0;
  for (std::size_t turn = 0; turn < places; ++turn) visit(ring_reduced_[(at.gradient + turn) % places]);
  if (shared_bucket_ >= 0) visit(ring_reduced_[kSharedSlot]);
}

// A lane may be behind some of its own micro-batch's forward: which part of it.
std::array<OpId, 2> StageLowering::waits_for_forward() const {
  const auto behind = emitter_.behind(stage_);
  const auto newest = [&](LaneKind waits, LaneKind other) {
    return behind[static_cast<std::size_t>(waits) * kLaneKinds + static_cast<std::size_t>(other)];
  };
  return {newest(LaneKind::tp, LaneKind::compute),
          newest(LaneKind::host_to_device, LaneKind::device_to_host)};
}

void StageLowering::enter(const Slot& slot, OpId arrival, Entry& entry) {
  entry.turns = turns();
  entry.forward = slot.kind != SlotKind::forward && tells_apart() ? forward_of(slot) : Forward{};
  // Gathers of kept inputs wait for the newer of what kept them and what last read their buffer.
  const auto stale = [&](OpId reader) { return reader != kNoOp && reader >= entry.forward.last; };
  if (layer_ring_.empty() && std::all_of(regather_reader_.begin(), regather_reader_.end(), stale))
    entry.forward = {};
  entry.ops.assign(1, arrival);
  each_waited(slot.kind, entry.turns, next_visit_ - unit_ring_size(), next_fetch_,
              [&](OpId op) { entry.ops.push_back(op); });
  if (entry.forward.first != kNoOp)
    entry.ops.insert(entry.ops.end(), {entry.forward.first, entry.forward.last - 1});
  entry.told.resize(entry.ops.size());
  for (std::size_t i = 0; i < entry.ops.size(); ++i) {
    const OpId op = entry.ops[i];
    const LaneId on = op == kNoOp ? kNoLane : emitter_.lane_at(stage_, op);
    entry.told[i] = std::uint64_t{emitter_.past(stage_, op, on, lanes_of_slots_)} << 16 |
                    (on == kNoLane ? kNoLane : static_cast<LaneId>(on % kLaneKinds));
  }
}

bool StageLowering::matches(const Stamp& stamp, const Entry& now) const {
  const Entry& then = stamp.entry;
  if (now.told != then.told || now.forward.stamp != then.forward.stamp) return false;
  const Turns &a = then.turns, &b = now.turns;
  const std::size_t ahead = a.fetch - a.visit, units = ahead + stamp.turned.fetch;
  if (b.fetch - b.visit != ahead || b.visit + units > visit_bucket_.size()) return false;
  const auto buckets = visit_bucket_.begin();
  if (!std::equal(buckets + static_cast<std::ptrdiff_t>(a.visit),
                  buckets + static_cast<std::ptrdiff_t>(a.visit + units),
                  buckets + static_cast<std::ptrdiff_t>(b.visit)))
    return false;
  for (std::size_t i = 0; i < now.ops.size(); ++i) {
    if ((now.ops[i] == kNoOp) != (then.ops[i] == kNoOp)) return false;
    if (i == 0) continue;
    const std::size_t older = stamp.order[i - 1], newer = stamp.order[i];
    if (lane_of(now.told[older]) == lane_of(now.told[newer]) &&
        (now.ops[older] > now.ops[newer] ||
         (now.ops[older] == now.ops[newer]) != (then.ops[older] == then.ops[newer])))
      return false;
  }
  if (now.forward.first == kNoOp) return true;
  // What lies inside its own forward lies at the same place of it.
  const auto same_place = [&](OpId x, OpId y) {
    const bool x_inside = x >= then.forward.first && x < then.forward.last,
               y_inside = y >= now.forward.first && y < now.forward.last;
    return x_inside == y_inside && (!x_inside || x - then.forward.first == y - now.forward.first);
  };
  const std::array<OpId, 2> waits = waits_for_forward();
  return std::equal(then.ops.begin(), then.ops.end(), now.ops.begin(), same_place) &&
         std::equal(waits.begin(), waits.end(), stamp.waits_for_forward.begin(), same_place);
}

// Completes the stamp of the slot just emitted; false when it holds something that is not known at its entry.
template <class Known>
bool StageLowering::remember(Stamp& stamp, const Slot& slot, const Known& known) {
  const Turns before = stamp.entry.turns, after = turns();
  stamp.turned = {after.regather - before.regather, after.gradient - before.gradient,
                  after.copy - before.copy, after.visit - before.visit, after.fetch - before.fetch};
  bool whole = emitter_.idle(stage_) && after.fetch < std::max<std::size_t>(1, visit_bucket_.size());
  for (const OpId dep :
       emitter_.deps().subspan(stamp.ops.deps_first, stamp.ops.deps_last - stamp.ops.deps_first))
    whole = whole && known(dep);
  each_waited(slot.kind, before, before.visit, after.fetch, [&](OpId op) {
    stamp.after.push_back(op);
    whole = whole && known(op);
  });
  for (const auto& [place, op] : stamp.waited) whole = whole && known(op);
  if (slot.kind == SlotKind::forward && tells_apart())
    for (const SavedLayer& layer : saved(slot).layers) {
      stamp.kept.emplace_back(layer.kept_by, layer.copied_out);
      whole = whole && known(layer.kept_by) && known(layer.copied_out);
    }
  return whole;
}

OpId StageLowering::repeat(const Stamp& stamp, const Entry& now, const Slot& slot) {
  const Entry& then = stamp.entry;
  const OpId shift = emitter_.size() - stamp.ops.first;
  const auto outside = [&](OpId op) {
    for (std::size_t i = 0; i < then.ops.size(); ++i)
      if (then.ops[i] == op) return now.ops[i];
    return op - then.forward.first + now.forward.first;
  };
  const auto moved = [&](OpId op) {
    return op == kNoOp ? op : op >= stamp.ops.first ? op + shift : outside(op);
  };
  emitter_.repeat(stamp.ops, {stamp.stage, stamp.microbatch}, {stage_, slot.microbatch}, outside);
  const auto behind = emitter_.behind(stage_);
  for (const auto& [place, op] : stamp.waited) behind[place] = moved(op);
  auto left = stamp.after.begin();
  const std::size_t fetched = now.turns.fetch + stamp.turned.fetch;
  each_waited(slot.kind, now.turns, now.turns.visit, fetched, [&](OpId& op) { op = moved(*left++); });
  next_regather_ += stamp.turned.regather;
  next_ring_slot_ += stamp.turned.gradient;
  next_place_ += stamp.turned.copy;
  next_visit_ += stamp.turned.visit;
  next_fetch_ = fetched;
  return last_ = moved(stamp.result);
}

// Before a slot is emitted whose forward was copied: what that forward kept.
void StageLowering::recall(const Slot& slot) {
  const Forward& forward = forward_of(slot);
  if (forward.stamp < 0 || !tells_apart()) return;
  const Stamp& stamp = stamps_of(SlotKind::forward, slot)[static_cast<std::size_t>(forward.stamp)];
  SavedChunk& keep = saved(slot);
  keep.layers.resize(stamp.kept.size());
  const auto moved = [&](OpId op) { return op == kNoOp ? op : op - stamp.ops.first + forward.first; };
  for (std::size_t i = 0; i < stamp.kept.size(); ++i) {
    keep.layers[i].kept_by = moved(stamp.kept[i].first);
    keep.layers[i].copied_out = moved(stamp.kept[i].second);
  }
}

template <class Emit>
OpId StageLowering::emit_or_repeat(const Slot& slot, OpId arrival, const Emit& emit) {
  if (emitter_.operands()) return emit();
  emitter_.hold_all(stage_);  // what is copied is whole
  const bool forward = slot.kind == SlotKind::forward;
  auto& stamps = stamps_of(slot.kind, slot);
  const OpId first = emitter_.size();
  const bool may_repeat = repeatable(slot) && emitter_.idle(stage_) && next_visit_ >= unit_ring_size();
  if (may_repeat) {
    enter(slot, arrival, entry_);
    for (std::size_t i = 0; i < stamps.size(); ++i) {
      if (!matches(stamps[i], entry_)) continue;
      const OpId result = repeat(stamps[i], entry_, slot);
      if (forward) forward_of(slot) = {first, emitter_.size(), static_cast<int>(i)};
      return result;
    }
  }
  if (!forward) recall(slot);
  const bool stands_alone = entry_.forward.first != kNoOp && entry_.forward.stamp < 0;
  if (!may_repeat || stands_alone || stamps.size() == kMostStamps) {
    const OpId result = emit();
    if (forward) forward_of(slot) = {first, emitter_.size(), -1};
    return result;
  }
  Stamp stamp;
  stamp.entry = entry_;
  stamp.order.resize(entry_.ops.size());
  std::iota(stamp.order.begin(), stamp.order.end(), 0u);
  std::stable_sort(stamp.order.begin(), stamp.order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(lane_of(entry_.told[a]), entry_.ops[a]) <
           std::pair(lane_of(entry_.told[b]), entry_.ops[b]);
  });
  stamp.waits_for_forward = waits_for_forward();
  const auto behind = emitter_.behind(stage_);
  const std::vector<OpId> behind_before(behind.begin(), behind.end());
  stamp.ops.first = first;
  stamp.ops.deps_first = emitter_.deps().size();
  stamp.microbatch = slot.microbatch;
  stamp.stage = stage_;
  stamp.result = emit();
  stamp.ops.last = emitter_.size();
  stamp.ops.deps_last = emitter_.deps().size();
  for (std::size_t i = 0; i < behind.size(); ++i)
    if (behind[i] != behind_before[i]) stamp.waited.emplace_back(i, behind[i]);
  const auto known = [&](OpId op) {
    const Entry& entry = stamp.entry;
    return op == kNoOp || op >= first || (op >= entry.forward.first && op < entry.forward.last) ||
           std::find(entry.ops.begin(), entry.ops.end(), op) != entry.ops.end();
  };
  const OpId result = stamp.result;
  const bool whole = remember(stamp, slot, known);
  if (forward) forward_of(slot) = {first, stamp.ops.last, whole ? static_cast<int>(stamps.size()) : -1};
  if (whole) stamps.push_back(std::move(stamp));
  return result;
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
