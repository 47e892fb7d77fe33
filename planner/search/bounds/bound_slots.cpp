// The bound that looks at every slot of the schedule.
#include <algorithm>
#include <limits>

#include "planner/search/bounds/bound.hpp"

namespace sextant {

namespace {

// Copies of offloaded activations as lower() orders them, layer by layer, on each stage's two copy lanes.
class Copies {
 public:
  Copies(const PipelineTimes& p, std::size_t stages, std::size_t slots, SlotScratch& scratch)
      : times_(p), scratch_(scratch), ring_(static_cast<std::size_t>(p.ring)) {
    if (p.offloaded.empty()) return;
    for (const auto& o : p.offloaded) most_ = std::max(most_, static_cast<std::size_t>(o.last - o.first));
    scratch_.out_lane.assign(stages, 0.0);
    scratch_.in_lane.assign(stages, 0.0);
    scratch_.turn.assign(stages, 0);
    scratch_.readers.assign(stages * ring_, 0.0);
    scratch_.copied.resize(std::max(scratch_.copied.size(), slots * most_));  // written before it is read
  }
  // The lanes are taken by the copies of so many micro-batches.
  void leave_out(int microbatches) {
    for (std::size_t chunk = 0; chunk < times_.offloaded.size(); ++chunk) {
      const auto& o = times_.offloaded[chunk];
      const std::size_t stage = chunk % scratch_.out_lane.size();
      scratch_.out_lane[stage] += microbatches * (o.last - o.first) * o.copy_out;
      scratch_.in_lane[stage] += microbatches * (o.last - o.first) * o.copy_in;
    }
  }
  // The end of the slot as copies have it.
  double slot(std::size_t stage, const SlotStep& step, double start) {
    const std::size_t chunk = step.of / kSlotKinds;
    switch (static_cast<SlotKind>(step.of % kSlotKinds)) {
      case SlotKind::forward:
        return forward(stage, chunk, step.at, start);
      case SlotKind::backward:
        return backward(stage, chunk, step.at, start);
      case SlotKind::weight:
        break;
    }
    return 0;
  }

 private:
  // The end of the forward or backward of all layers, or of nothing when nothing is copied.
  double forward(std::size_t stage, std::size_t chunk, std::size_t slot, double start) {
    const auto& o = times_.offloaded[chunk];
    if (o.last == o.first) return 0;
    double* copied = scratch_.copied.data() + slot * most_;
    double time = start + o.lead_forward + o.first * o.forward;
    double& lane = scratch_.out_lane[stage];
    for (int i = o.first; i < o.last; ++i) {
      double& reader = next_reader(stage);
      time = std::max(time, reader) + o.forward;
      *copied++ = reader = lane = std::max(lane, time) + o.copy_out;
    }
    return time + (o.count - o.last) * o.forward;
  }
  double backward(std::size_t stage, std::size_t chunk, std::size_t slot, double start) {
    if (times_.offloaded[chunk].last == times_.offloaded[chunk].first) return 0;
    const auto& o = times_.offloaded[chunk];
    const double* copied = scratch_.copied.data() + slot * most_;
    double time = start + o.lead_backward + (o.count - o.last) * o.backward;
    double& lane = scratch_.in_lane[stage];
    for (int i = o.last - o.first - 1; i >= 0; --i) {
      double& reader = next_reader(stage);
      lane = std::max({lane, reader, copied[i]}) + o.copy_in;
      reader = time = std::max(time, lane) + o.backward;
    }
    return time + o.first * o.backward_again;
  }
  // When the place that is next in the ring is free.
  double& next_reader(std::size_t stage) {
    std::size_t& turn = scratch_.turn[stage];
    double& reader = scratch_.readers[stage * ring_ + turn];
    turn = turn + 1 == ring_ ? 0 : turn + 1;
    return reader;
  }

  const PipelineTimes& times_;
  SlotScratch& scratch_;
  std::size_t ring_, most_ = 0;
};

// What slots take on their stages, by SlotStep::of.
void fill_taken(const PipelineTimes& p, const StageStates& state, std::vector<SlotScratch::Taken>& out) {
  const auto pp = static_cast<std::uint32_t>(p.pp);
  const std::size_t n_chunks = std::size_t{pp} * static_cast<std::size_t>(p.vp);
  // With several chunks or a split backward it is not known here which slot needs how much.
  const bool known = p.vp == 1 && p.schedule != PipelineSchedule::zero_bubble && !state.empty();
  out.assign(kSlotKinds * n_chunks, {});
  std::uint32_t s = 0;
  for (std::size_t chunk = 0; chunk < n_chunks; ++chunk, s = s + 1 == pp ? 0 : s + 1) {
    SlotScratch::Taken* t = &out[kSlotKinds * chunk];
    std::fill_n(t, kSlotKinds, SlotScratch::Taken{.lane = s, .way = 2 * pp});
    SlotScratch::Taken &forward = t[0], &backward = t[1], &weight = t[2];
    forward.span = p.forward[chunk];
    forward.held = forward.compute = p.busy_forward[chunk];
    backward.span = p.backward[chunk];
    backward.held = backward.compute = p.busy[chunk];
    weight.span = weight.held = weight.compute = p.weight[chunk];
    // Fetches and reductions on the compute lane: sends may leave before the last, and they may fill waits.
    if (known) {
      forward.held += state[s].per_forward;
      backward.held += state[s].per_backward;
    }
    if (pp == 1 && !state.empty()) {
      forward.span = std::max(forward.span, state[s].forward_floor);
      backward.span = std::max(backward.span, state[s].backward_floor);
    }
    if (chunk + 1 < n_chunks) {
      forward.send = p.send[s];
      forward.way = s;
    }
    if (chunk > 0) {
      backward.send = p.send[s == 0 ? pp - 1 : s - 1];
      backward.way = pp + s;
    }
  }
}

bool reduces_in_slots(const StageStates& state) { return !state.empty() && !state[0].rings.empty(); }

// The lane of reductions goes on; until when the slot cannot end.
double reduce_through_ring(const PipelineTimes& p, const StateTimes::Ring& ring, std::size_t chunk,
                           const SlotStep& step, std::size_t stage, double start, SlotScratch& scratch) {
  double &reduced = scratch.reduced[stage], &but_one = scratch.reduced_but_one[stage];
  if (step.is_last) scratch.reduced_before[chunk] = reduced;
  if (ring.all <= 0) return 0;
  const double begin = std::max(reduced, ready_to_reduce(p, chunk, ring.first, start));
  const double free = ring.but_two >= 0 ? begin + ring.but_two : but_one;
  but_one = begin + ring.but_one;
  reduced = begin + ring.all;
  return free;
}

// Lanes and ways are taken by the slots of so many micro-batches.
void leave_out(const PipelineTimes& p, const StageStates& state, int microbatches, SlotScratch& scratch) {
  for (std::size_t s = 0; s < state.size(); ++s)
    for (const StateTimes::Ring& ring : state[s].rings) scratch.reduced[s] += microbatches * ring.all;
  for (const SlotScratch::Taken& t : scratch.taken) {
    scratch.lane[t.lane] += microbatches * (std::max(t.span, t.held) + (p.p2p_overlaps ? 0 : t.send));
    scratch.left[t.lane] -= microbatches * t.compute;
    if (p.p2p_overlaps) scratch.way[t.way] += microbatches * t.send;
  }
}

// What the slots of all stages take: fills the scratch. Above `limit` it may end early, with what the step takes at
// least; otherwise 0.
double pass(const PipelineTimes& p, const StageStates& state, const SlotSteps& walk, SlotScratch& scratch,
            double limit) {
  const auto pp = static_cast<std::size_t>(p.pp);
  const std::size_t n_chunks = pp * static_cast<std::size_t>(p.vp), m = static_cast<std::size_t>(walk.walked);
  auto &lane = scratch.lane, &left = scratch.left, &way = scratch.way, &last_busy = scratch.last_busy;
  auto &last_start = scratch.last_start, &arrived = scratch.arrived;
  auto& table = scratch.taken;
  for (auto* list : {&lane, &left, &last_busy, &scratch.arrival, &scratch.reduced, &scratch.reduced_but_one})
    list->assign(pp, 0.0);
  scratch.reduced_before.assign(n_chunks, 0.0);
  way.assign(2 * pp + 1, 0.0);
  last_start.assign(n_chunks, 0.0);
  const std::size_t nothing = 2 * n_chunks * m;
  arrived.resize(std::max(arrived.size(), nothing + 2));  // but for this one, written before they are read
  arrived[nothing] = 0;
  Copies copies(p, pp, n_chunks * m, scratch);
  for (std::size_t s = 0; s < pp && !state.empty(); ++s) lane[s] = state[s].start;
  fill_taken(p, state, table);
  for (const SlotScratch::Taken& t : table) left[t.lane] += p.microbatches * t.compute;
  const double hopeless = limit * (1 + 1e-9);  // room for roundings of `left`
  const bool copied = !p.offloaded.empty(), ringed = reduces_in_slots(state);
  const SlotStep* const cut = walk.left_out > 0 ? walk.steps.data() + walk.cut : nullptr;
  for (const SlotStep& step : walk.steps) {
    if (&step == cut) {
      leave_out(p, state, walk.left_out, scratch);
      copies.leave_out(walk.left_out);
    }
    const SlotScratch::Taken& t = table[step.of];
    double& free = lane[t.lane];
    const double start = std::max(free, arrived[step.from]);
    double end = start + t.span;
    const std::size_t chunk = step.of / kSlotKinds;
    if (step.is_first && chunk < pp) scratch.arrival[chunk] = start;
    if (copied) end = std::max(end, copies.slot(t.lane, step, start));
    if (step.is_first && !state.empty() && !state[t.lane].ready.empty())
      end = std::max(end, forward_end(p, chunk, state[t.lane].ready[chunk / pp]));
    if (ringed && step.of % kSlotKinds == static_cast<std::size_t>(SlotKind::backward))
      end = std::max(
          end, reduce_through_ring(p, state[t.lane].rings[chunk / pp], chunk, step, t.lane, start, scratch));
    if (step.is_last) {
      last_start[chunk] = start;
      last_busy[t.lane] = start + t.held;
    }
    free = std::max(end, start + t.held);
    left[t.lane] -= t.compute;
    if (free + left[t.lane] > hopeless) return free + left[t.lane];
    double& sent = way[t.way];
    arrived[step.to] = sent = (p.p2p_overlaps ? std::max(end, sent) : free) + t.send;
    if (!p.p2p_overlaps) free = sent;
  }
  return 0;
}

// When all parameters of a chunk are there. Where nothing is waited for but the start, all layers are behind it.
void least_ready(const StateTimes& other, StateTimes& out) {
  const std::size_t chunks = std::max(other.ready.size(), out.ready.size());
  const StateTimes::Ready started{other.start, std::numeric_limits<int>::max(), false};
  if (out.ready.empty()) out.ready.assign(chunks, {out.start, std::numeric_limits<int>::max(), false});
  for (std::size_t v = 0; v < chunks; ++v) {
    StateTimes::Ready& mine = out.ready[v];
    const StateTimes::Ready& its = other.ready.empty() ? started : other.ready[v];
    mine = {std::min(mine.seconds, its.seconds), std::min(mine.layers, its.layers), mine.head || its.head};
  }
}

void least_of(const std::vector<StateTimes::Ring>& other, std::vector<StateTimes::Ring>& out) {
  if (other.empty()) out.clear();
  for (std::size_t v = 0; v < out.size(); ++v) {
    StateTimes::Ring& ring = out[v];
    ring.first.layers = std::min(ring.first.layers, other[v].first.layers);
    ring.first.head = ring.first.head || other[v].first.head;
    ring.first.embedding = ring.first.embedding && other[v].first.embedding;
    ring.all = std::min(ring.all, other[v].all);
    ring.but_one = std::min(ring.but_one, other[v].but_one);
    ring.but_two = std::min(ring.but_two, other[v].but_two);
  }
}

// What a pass looks at, the least of several by stage.
void least_of(std::span<const StageStates* const> states, Start start, StageStates& out) {
  out.clear();
  for (std::size_t s = 0; s < states.front()->size(); ++s) {
    if (std::ranges::all_of(states, [&](const StageStates* state) { return state->is_as_before(s); })) {
      out.repeat();
      continue;
    }
    const StateTimes& first = (*states.front())[s];
    StateTimes t;
    t.start = first.start;
    t.ready = first.ready;
    t.per_forward = first.per_forward;
    t.per_backward = first.per_backward;
    t.forward_floor = first.forward_floor;
    t.backward_floor = first.backward_floor;
    t.rings = first.rings;
    for (const StageStates* state : states.subspan(1)) {
      const StateTimes& other = (*state)[s];
      least_ready(other, t);
      t.start = std::min(t.start, other.start);
      t.per_forward = std::min(t.per_forward, other.per_forward);
      t.per_backward = std::min(t.per_backward, other.per_backward);
      t.forward_floor = std::min(t.forward_floor, other.forward_floor);
      t.backward_floor = std::min(t.backward_floor, other.backward_floor);
      least_of(other.rings, t.rings);
    }
    if (start == Start::open) {
      t.start = 0;
      t.ready.clear();
    }
    out.add(std::move(t));
  }
}

// What a stage's compute lane does between its first slot and its last one, without waits.
double computed(const PipelineTimes& p, const StateTimes& t, std::size_t stage) {
  const std::size_t pp = static_cast<std::size_t>(p.pp), n_chunks = p.forward.size();
  double once = t.per_forward + t.per_backward;
  for (std::size_t i = stage; i < n_chunks; i += pp) {
    once += p.busy_forward[i] + p.busy[i] + p.weight[i];
    if (p.p2p_overlaps) continue;
    if (i + 1 < n_chunks) once += p.send[stage];
    if (i > 0) once += p.send[stage == 0 ? pp - 1 : stage - 1];
  }
  return p.microbatches * once;
}

// From the end of the slots to the end of the step.
double tail(const PipelineTimes& p, const StageStates& state, double closing, const SlotScratch& scratch) {
  const auto pp = static_cast<std::size_t>(p.pp);
  double end = 0;
  for (std::size_t s = 0; s < pp; ++s) {
    double lane = scratch.lane[s];
    if (!state.empty()) {
      const double arrival = scratch.arrival[s], work = computed(p, state[s], s);
      if (p.pp == 1) lane = std::max(lane, alone_bound(p, state[s], 0, arrival, work));
      end = std::max(end, alone_bound(p, state[s], static_cast<int>(s), arrival, work + state[s].on_compute));
    }
    end = std::max({end, lane, p.copies[s]});
    if (state.empty()) continue;
    end = std::max({end, scratch.last_busy[s] + state[s].on_compute_last, state[s].lane_total});
    if (p.pp == 1 && !state[s].reductions.empty()) end = std::max(end, lane + state[s].last_overlapped);
    double reduce = 0, copy = 0;
    const auto& copied = state[s].copied;
    for (std::size_t i = 0; i < state[s].reductions.size(); ++i) {
      const StateTimes::Reduction& r = state[s].reductions[i];
      const std::size_t chunk = r.chunk * pp + s;
      const double ready = ready_to_reduce(p, chunk, r, scratch.last_start[chunk]);
      reduce = std::max({reduce, scratch.reduced_before[chunk], ready}) + r.seconds;
      if (!copied.empty()) copy = std::max(copy + copied[i].all, reduce + copied[i].last);
    }
    end = std::max({end, reduce, copy - closing});  // nothing follows a copy
  }
  return end;
}

}  // namespace

double slot_bound(const PipelineTimes& p, std::span<const StageStates* const> states, double closing,
                  const SlotSteps& steps, SlotScratch& scratch, double limit, Start start) {
  static const StageStates kNone;
  const bool as_it_is = states.size() == 1 && start == Start::known;
  if (!states.empty() && !as_it_is) least_of(states, start, scratch.least);
  const StageStates& least = states.empty() ? kNone : as_it_is ? *states.front() : scratch.least;
  const double early = pass(p, least, steps, scratch, limit - closing);
  if (early > 0) return early + closing;
  double end = states.empty() ? tail(p, kNone, closing, scratch) : INFINITY;
  for (const StageStates* state : states) end = std::min(end, tail(p, *state, closing, scratch));
  return end + closing;
}

}  // namespace sextant
