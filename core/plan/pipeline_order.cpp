#include "core/plan/pipeline_order.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace sextant {
namespace {

using Slots = std::vector<Slot>;

Slot make_slot(SlotKind kind, int chunk, int microbatch) {
  return {kind, static_cast<std::uint16_t>(chunk), static_cast<std::uint32_t>(microbatch)};
}

// Forward and backward sequences of one stage, run as `warmup` forwards, then pairs, then the remaining backwards.
Slots one_forward_one_backward(const Slots& forward, const Slots& backward, std::size_t warmup) {
  Slots order;
  order.reserve(forward.size() + backward.size());
  order.assign(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(warmup));
  for (std::size_t i = warmup, j = 0; j < backward.size(); ++i, ++j) {
    if (i < forward.size()) order.push_back(forward[i]);
    order.push_back(backward[j]);
  }
  return order;
}

// All (chunk, micro-batch) units in Megatron's table order: groups of micro-batches, chunk by chunk.
Slots table(SlotKind kind, int size, int vp, int m) {
  Slots units;
  units.reserve(static_cast<std::size_t>(m) * static_cast<std::size_t>(vp));
  for (int group = 0; group < m; group += size)
    for (int v = 0; v < vp; ++v)
      for (int mb = group; mb < std::min(group + size, m); ++mb)
        units.push_back(make_slot(kind, kind == SlotKind::forward ? v : vp - 1 - v, mb));
  return units;
}

Slots zero_bubble(int pp, int m, int stage) {
  Slots order;
  const int warmup = std::min(m, pp - stage - 1);
  int next_weight = 0;
  for (int mb = 0; mb < warmup; ++mb) order.push_back(make_slot(SlotKind::forward, 0, mb));
  for (int mb = 0; mb < m; ++mb) {
    if (warmup + mb < m) order.push_back(make_slot(SlotKind::forward, 0, warmup + mb));
    order.push_back(make_slot(SlotKind::backward, 0, mb));
    // One weight half per backward once `stage` of them wait; two while draining, where forwards have run out.
    const int kept_back = warmup + mb < m ? stage : std::max(0, m - 1 - mb < stage ? m - 1 - mb : stage);
    while (next_weight <= mb - kept_back) order.push_back(make_slot(SlotKind::weight, 0, next_weight++));
  }
  while (next_weight < m) order.push_back(make_slot(SlotKind::weight, 0, next_weight++));
  return order;
}

}  // namespace

namespace {

// The sequences that all stages share.
struct Sequences {
  Sequences(PipelineSchedule schedule, int pp, int vp, int m) {
    if (schedule == PipelineSchedule::zero_bubble) return;
    const int group = schedule == PipelineSchedule::gpipe         ? m
                      : schedule == PipelineSchedule::interleaved ? interleaved_group(pp, m)
                                                                  : 1;
    forward = table(SlotKind::forward, group, vp, m);
    backward = table(SlotKind::backward, group, vp, m);
  }
  Slots forward, backward;
};

Slots stage_order(PipelineSchedule schedule, int pp, int vp, int m, int stage, const Sequences& all) {
  const std::size_t total = all.forward.size();
  switch (schedule) {
    case PipelineSchedule::gpipe: {
      Slots order = all.forward;
      order.insert(order.end(), all.backward.begin(), all.backward.end());
      return order;
    }
    case PipelineSchedule::zero_bubble:
      return zero_bubble(pp, m, stage);
    case PipelineSchedule::interleaved: {
      const auto warmup =
          static_cast<std::size_t>(2 * (pp - stage - 1) + (vp - 1) * interleaved_group(pp, m));
      return one_forward_one_backward(all.forward, all.backward, m == pp ? total : std::min(warmup, total));
    }
    case PipelineSchedule::one_f_one_b:
      break;
  }
  return one_forward_one_backward(all.forward, all.backward,
                                  std::min(static_cast<std::size_t>(pp - stage - 1), total));
}

}  // namespace

int interleaved_group(int pp, int m) {
  for (int size = pp; size <= m; ++size)
    if (m % size == 0 || m % size >= pp) return size;
  return 0;
}

std::vector<Slot> pipeline_order(PipelineSchedule schedule, int pp, int vp, int m, int stage) {
  return stage_order(schedule, pp, vp, m, stage, Sequences(schedule, pp, vp, m));
}

std::vector<std::vector<Slot>> pipeline_orders(PipelineSchedule schedule, int pp, int vp, int m) {
  const Sequences all(schedule, pp, vp, m);
  std::vector<Slots> orders;
  for (int s = 0; s < pp; ++s) orders.push_back(stage_order(schedule, pp, vp, m, s, all));
  return orders;
}

int peak_in_flight(const std::vector<Slot>& order) {
  int alive = 0, peak = 0;
  bool split = false;
  for (const Slot& slot : order) split = split || slot.kind == SlotKind::weight;
  for (const Slot& slot : order) {
    if (slot.kind == SlotKind::forward) peak = std::max(peak, ++alive);
    if (slot.kind == (split ? SlotKind::weight : SlotKind::backward)) --alive;
  }
  return peak;
}

std::vector<StageSlot> merged_order(PipelineSchedule schedule, int pp, int vp, int m) {
  return merged_order(pipeline_orders(schedule, pp, vp, m), vp, m);
}

std::vector<StageSlot> merged_order(const std::vector<std::vector<Slot>>& orders, int vp, int m) {
  std::size_t total = 0;
  for (const Slots& order : orders) total += order.size();
  const int pp = static_cast<int>(orders.size()), n_chunks = pp * vp;
  // By model chunk and micro-batch: what has been sent to it.
  std::vector<char> activations(static_cast<std::size_t>(n_chunks * m)), gradients(activations.size());
  const auto index = [m](int chunk, std::uint32_t mb) { return static_cast<std::size_t>(chunk * m) + mb; };
  std::vector<std::size_t> next(static_cast<std::size_t>(pp), 0);
  std::vector<StageSlot> merged;
  merged.reserve(total);
  while (merged.size() < total) {
    const std::size_t before = merged.size();
    for (int s = 0; s < pp; ++s) {
      auto& at = next[static_cast<std::size_t>(s)];
      if (at == orders[static_cast<std::size_t>(s)].size()) continue;
      const Slot& slot = orders[static_cast<std::size_t>(s)][at];
      const int chunk = slot.chunk * pp + s;
      if (slot.kind == SlotKind::forward) {
        if (chunk > 0 && !activations[index(chunk, slot.microbatch)]) continue;
        if (chunk + 1 < n_chunks) activations[index(chunk + 1, slot.microbatch)] = 1;
      } else if (slot.kind == SlotKind::backward) {
        if (chunk + 1 < n_chunks && !gradients[index(chunk, slot.microbatch)]) continue;
        if (chunk > 0) gradients[index(chunk - 1, slot.microbatch)] = 1;
      }
      merged.push_back({s, slot});
      ++at;
    }
    SEXTANT_CHECK(merged.size() > before, "the pipeline order waits in a circle");
  }
  return merged;
}

std::vector<std::vector<Occupancy>> occupancy(PipelineSchedule schedule, int pp, int vp, int m) {
  const bool split = schedule == PipelineSchedule::zero_bubble;
  const int n_chunks = pp * vp;
  std::vector<std::vector<Occupancy>> distinct(static_cast<std::size_t>(pp));
  std::vector<Occupancy> now(static_cast<std::size_t>(pp));
  for (Occupancy& o : now) {
    o.saved.resize(static_cast<std::size_t>(vp));
    o.saved_weight.resize(o.saved.size());
  }
  for (const StageSlot& entry : merged_order(schedule, pp, vp, m)) {
    Occupancy& o = now[static_cast<std::size_t>(entry.stage)];
    const Slot& slot = entry.slot;
    const int chunk = slot.chunk * pp + entry.stage;
    o.kind = slot.kind;
    o.chunk = slot.chunk;
    if (slot.kind == SlotKind::forward) ++o.saved[slot.chunk];
    if (slot.kind == SlotKind::backward && split) ++o.saved_weight[slot.chunk];
    auto& list = distinct[static_cast<std::size_t>(entry.stage)];
    if (std::find(list.begin(), list.end(), o) == list.end()) list.push_back(o);

    if (slot.kind == SlotKind::backward) --o.saved[slot.chunk];
    if (slot.kind == SlotKind::weight) --o.saved_weight[slot.chunk];
    if (slot.kind == SlotKind::weight) continue;
    const bool forward = slot.kind == SlotKind::forward;
    if (forward ? chunk > 0 : chunk + 1 < n_chunks) --o.arrived;
    const int to = forward ? chunk + 1 : chunk - 1;
    if (to >= 0 && to < n_chunks) ++now[static_cast<std::size_t>(to % pp)].arrived;
  }
  return distinct;
}

}  // namespace sextant
