#include "planner/search/bounds/bound.hpp"

#include <algorithm>

#include "planner/simulation/predict.hpp"

namespace sextant {

namespace {

struct OverlappedCollectives {
  double collectives = 0;  // beside compute of a stage, over the whole step
  int lanes = 0;           // of them
};
OverlappedCollectives overlapped(const PipelineTimes& p, const StateTimes& t, int stage) {
  double regather = 0;
  for (int chunk = stage; chunk < p.pp * p.vp; chunk += p.pp)
    regather += p.microbatches * p.regather[static_cast<std::size_t>(chunk)];
  return {t.collectives + regather, t.collective_lanes + (regather > 0 ? 1 : 0)};
}

}  // namespace

// Whatever part of its collectives does not hold up compute runs beside it and slows it.
// With C the compute, h its begin, G the collectives beside it on L lanes, c the slow-down, and x the end of compute in
// the first pass: the second pass ends at max(x, h + C + c (G - L (x - C))) or later, which is least at
// x = h + C + c (G - L h) / (1 + c L).
double alone_bound(const PipelineTimes& p, const StateTimes& t, int stage, double head, double work,
                   double beyond) {
  if (p.slows <= 0) return 0;
  const auto [collectives, lanes] = overlapped(p, t, stage);
  return head + work +
         p.slows * std::max(0.0, collectives - lanes * (head + beyond + t.held)) / (1 + p.slows * lanes);
}

double forward_end(const PipelineTimes& p, std::size_t chunk, const StateTimes::Ready& r) {
  const double head = r.head ? p.head_gemm : p.head_forward;
  return r.seconds + r.layers * p.layer_forward[chunk] + (chunk + 1 == p.forward.size() ? head : 0.0);
}

namespace {

// The slots of one micro-batch on a stage's compute lane, seconds.
struct StageSlots {
  double all = 0, slowed = 0;
  double waits = 0;                // for copies and rings inside slots, which other work of the slot may fill
  double fetched_and_reduced = 0;  // added to them
  double least = 0, last_backward = 0;  // no shorter: all of them, and the last
  bool are_stretched() const { return least > all + fetched_and_reduced; }
};

// A single stage's slots hold their fetches, and are no shorter than those in turn.
void stretch_single_stage(const PipelineTimes& p, const StateTimes& t, bool copies, StageSlots& slots) {
  double& least = slots.least;
  slots.last_backward = std::max({p.busy[0] + p.slowed[0] + t.per_backward, p.backward[0], t.backward_floor});
  least = std::max({p.busy_forward[0] + t.per_forward, p.forward[0], t.forward_floor}) + slots.last_backward +
          p.weight[0];
  if (!copies) return;
  // The last layer copied out of a micro-batch comes back before its own backward and that of all before it.
  const PipelineTimes::OffloadedChunk& o = p.offloaded[0];
  const int copied = o.last - o.first;
  least = std::max(least, o.forward + copied * (o.copy_out + o.backward) + o.copy_in);
  slots.last_backward = std::max(slots.last_backward, least - p.forward[0] - t.per_forward);
}

StageSlots stage_slots(const PipelineTimes& p, const StateTimes& t, int stage, bool copies) {
  StageSlots slots;
  for (int v = 0; v < p.vp; ++v) {
    const auto i = static_cast<std::size_t>(v * p.pp + stage);
    slots.all += p.busy_forward[i] + p.busy[i] + p.slowed[i] + p.weight[i];
    slots.slowed += p.slowed[i];
    slots.waits += p.forward[i] - p.busy_forward[i] + p.backward[i] - p.busy[i] - p.slowed[i];
  }
  slots.fetched_and_reduced = t.per_forward + t.per_backward;
  slots.last_backward = p.backward[static_cast<std::size_t>(stage)];
  slots.least = slots.all + slots.waits;
  if (p.pp == 1) stretch_single_stage(p, t, copies, slots);
  return slots;
}

// Sends of activations and gradients that occupy the sender: of all micro-batches, and the last one.
struct BlockingSends {
  double all = 0, last = 0;
};
BlockingSends blocking_sends(const PipelineTimes& p, int stage) {
  const auto chunk = static_cast<std::size_t>(stage);
  const int forwards = p.vp - (stage == p.pp - 1 ? 1 : 0), backwards = p.vp - (stage == 0 ? 1 : 0);
  const double gradient = stage > 0 ? p.send[chunk - 1] : p.send[static_cast<std::size_t>(p.pp - 1)];
  const double m = p.microbatches;
  return {m * (forwards * p.send[chunk] + backwards * gradient), stage > 0 ? gradient : 0.0};
}

// 1F1B: the last stage's backward of micro-batch i goes back to the first stage, whose forward of i + pp waits for it
// and comes all the way up again. `back`: from the end of the last stage's last backward to that of the first one's.
double end_of_rounds(const PipelineTimes& p, double start, double back) {
  double round = 0, arrival = 0;
  for (int s = 0; s < p.pp; ++s) {
    const auto i = static_cast<std::size_t>(s);
    round += p.forward[i] + p.backward[i] + (s + 1 < p.pp ? 2 * p.send[i] : 0.0);
    if (s + 1 < p.pp) arrival += p.forward[i] + p.send[i];
  }
  const auto last = static_cast<std::size_t>(p.pp - 1);
  const int rounds = (p.microbatches - 1) / p.pp, first = (p.microbatches - 1) % p.pp + 1;
  return start + arrival + first * (p.forward[last] + p.backward[last]) + rounds * round + back;
}

// The way of a stage's micro-batches: what comes before its first slot, and behind its last.
struct StageWay {
  double head = 0;        // first forward of the stage begins
  double back = 0;        // from the end of the stage's last backward to the end of the first stage's
  double first_tail = 0;  // what follows the first stage's last backward
};

// When the stage is done at least, seconds. `way.head` moves on to where its first forward begins.
double stage_end(const PipelineTimes& p, const StateTimes& t, int stage, StageWay& way) {
  const auto chunk = static_cast<std::size_t>(stage);
  const double m = p.microbatches, arrival = way.head;
  double late = way.head;  // the same where the first forward waits for parameters
  if (!t.ready.empty()) late = std::max(way.head, forward_end(p, chunk, t.ready[0]) - p.forward[chunk]);
  // Copies out go on while a single stage's forward waits, and with them some waits of its backward.
  const bool copies = p.pp == 1 && !p.offloaded.empty() && p.offloaded[0].last > p.offloaded[0].first;
  if (!copies) way.head = late;
  const StageSlots slots = stage_slots(p, t, stage, copies);
  const double per_slots = slots.fetched_and_reduced;
  double work = m * std::max(slots.all + per_slots, slots.least),
         computed = m * (slots.all - slots.slowed + per_slots);
  double last_send = t.per_backward;  // the last gradient may leave before the slot's last reduction
  if (!p.p2p_overlaps && p.pp > 1) {
    const BlockingSends sends = blocking_sends(p, stage);
    work += sends.all;
    computed += sends.all;
    last_send += sends.last;
  }
  const double undisturbed = way.head + work;
  double lane = std::max(undisturbed, copies ? late + m * slots.all : 0.0);
  // A wait inside the first forward may be filled by what is slowed before it.
  if (p.pp == 1) lane = std::max(lane, alone_bound(p, t, stage, arrival, computed));
  const double on_compute = slots.are_stretched() ? 0.0 : t.on_compute;
  double end = std::max({p.copies[chunk], lane + on_compute, t.lane_total});
  end = std::max(end, alone_bound(p, t, stage, arrival, computed + t.on_compute));
  if (p.schedule == PipelineSchedule::zero_bubble) return end;
  end = std::max({end, lane - last_send + way.back + way.first_tail, lane - last_send + t.last_overlapped});
  // What is slowed of them goes back later; beside the way back run collectives that slow nothing of this stage.
  const double left_after = (1 + p.slows * overlapped(p, t, stage).lanes) * last_send,
               way_back = std::max(0.0, way.back + way.first_tail - left_after);
  end = std::max(end, alone_bound(p, t, stage, arrival, computed, way_back) + way_back);
  if (p.vp == 1) end = std::max(end, undisturbed - last_send - slots.last_backward + t.overlapped_total);
  return end;
}

}  // namespace

double closed_bound(const PipelineTimes& p, const StageStates& state, double closing) {
  static const StateTimes kNone;
  const auto of = [&](int s) -> const StateTimes& {
    return state.empty() ? kNone : state[static_cast<std::size_t>(s)];
  };
  StageWay way;
  // Reductions on the compute lane may fill the waits that the first stage's last backward has.
  way.first_tail = of(0).last_overlapped;
  if (!state.empty() && p.pp > 1)
    way.first_tail = std::max(way.first_tail, of(0).on_compute_last - (p.backward[0] - p.busy[0]));
  double end = 0;
  for (int s = 0; s < p.pp; ++s) {
    const StateTimes& t = of(s);
    if (s > 0) {
      const auto before = static_cast<std::size_t>(s - 1);
      way.head += p.forward[before] + p.send[before];
      way.back += p.backward[before] + p.send[before];
    }
    way.head = std::max(way.head, t.start);
    end = std::max(end, stage_end(p, t, s, way));
  }
  if (p.vp == 1 && p.pp > 1 && p.schedule != PipelineSchedule::gpipe &&
      p.schedule != PipelineSchedule::interleaved)
    end = std::max(end, end_of_rounds(p, of(0).start, way.back));
  return end + closing;
}

Seconds step_lower_bound(const Job& job, std::span<const ParallelPlan> any, const PlanLinks& links) {
  ParallelPlan plan = any.front();
  if (any.size() > 1) plan.activation_offload = 0;
  const BlockTimes blocks = block_times(job, plan);
  StageLayerTimes layers;
  const std::vector<double> factors = stage_compute_factors(job, plan);
  for (int stage = 0; stage < plan.pp; ++stage) {
    const double factor = factors.empty() ? 1.0 : factors[static_cast<std::size_t>(stage)];
    layers.index.push_back(static_cast<std::uint16_t>(stage));
    layers.distinct.push_back(
        layer_times(plan, blocks.slower(factor), link_times(job, plan, links.of(stage)), job.stack));
  }
  const int m = microbatches(plan, job.training);
  PipelineTimes pipeline;
  pipeline_times(plan, layer_ranges(plan, job.model.n_layers), job.stack, m, layers,
                 any.size() == 1 && is_steady(plan, job.stack.rules), pipeline);
  std::vector<StageStates> made;
  StateScratch state_scratch;
  for (const ParallelPlan& member : any)
    made.push_back(state_times(job, member, links, stage_buckets(job, member), state_scratch));
  std::vector<const StageStates*> states;
  double closed = INFINITY;
  const double closing = closing_time(job, links);
  for (const StageStates& state : made) {
    states.push_back(&state);
    closed = std::min(closed, closed_bound(pipeline, state, closing));
  }
  SlotScratch scratch;
  return Seconds(std::max(closed, slot_bound(pipeline, states, closing,
                                             slot_steps(plan.schedule, plan.pp, plan.vp, m), scratch)));
}

}  // namespace sextant
