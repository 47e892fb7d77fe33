#include "planner/search/bounds/bound.hpp"

#include <algorithm>

#include "planner/simulation/predict.hpp"

namespace sextant {

namespace {

struct BesideStage {
  double collectives = 0;  // beside compute of a stage, over the whole step
  int lanes = 0;           // of them
};
BesideStage beside(const PipelineTimes& p, const StateTimes& t, int stage) {
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
  const auto [collectives, lanes] = beside(p, t, stage);
  return head + work +
         p.slows * std::max(0.0, collectives - lanes * (head + beyond + t.held)) / (1 + p.slows * lanes);
}

double forward_end(const PipelineTimes& p, std::size_t chunk, const StateTimes::Ready& r) {
  const double head = r.head ? p.head_product : p.head_forward;
  return r.seconds + r.layers * p.layer_forward[chunk] + (chunk + 1 == p.forward.size() ? head : 0.0);
}

double closed_bound(const PipelineTimes& p, const StageStates& state, double closing) {
  static const StateTimes kNone;
  const auto of = [&](int s) -> const StateTimes& {
    return state.empty() ? kNone : state[static_cast<std::size_t>(s)];
  };
  const bool split = p.schedule == PipelineSchedule::zero_bubble;
  const double m = p.microbatches;
  double head = 0;  // first forward of the stage begins
  double back = 0;  // from the end of the stage's last backward to the end of the first stage's
  double end = 0;
  // What follows the first stage's last backward; reductions on the compute lane may fill the waits that it has.
  double first_tail = state.empty() ? 0.0 : of(0).last_beside;
  if (!state.empty() && p.pp > 1)
    first_tail = std::max(first_tail, of(0).on_compute_last - (p.backward[0] - p.busy[0]));
  for (int s = 0; s < p.pp; ++s) {
    const StateTimes& t = of(s);
    const auto chunk = static_cast<std::size_t>(s);
    if (s > 0) {
      head += p.forward[chunk - 1] + p.send[chunk - 1];
      back += p.backward[chunk - 1] + p.send[chunk - 1];
    }
    head = std::max(head, t.start);
    const double arrival = head;
    double late = head;  // the same where the first forward waits for parameters
    if (!t.ready.empty()) late = std::max(head, forward_end(p, chunk, t.ready[0]) - p.forward[chunk]);
    // Copies out go on while a single stage's forward waits, and with them some waits of its backward.
    const bool copies = p.pp == 1 && !p.offloaded.empty() && p.offloaded[0].last > p.offloaded[0].first;
    if (!copies) head = late;
    double slots = 0, slowed = 0,
           waits = 0;  // for copies and rings inside slots, which other work of the slot may fill
    for (int v = 0; v < p.vp; ++v) {
      const auto i = static_cast<std::size_t>(v * p.pp + s);
      slots += p.busy_forward[i] + p.busy[i] + p.slowed[i] + p.weight[i];
      slowed += p.slowed[i];
      waits += p.forward[i] - p.busy_forward[i] + p.backward[i] - p.busy[i] - p.slowed[i];
    }
    double per_slots = t.per_forward + t.per_backward, on_compute = t.on_compute;
    double last_slot = p.backward[chunk], least = slots + waits;
    if (p.pp == 1) {
      // A single stage's slots hold their fetches, and are no shorter than those in turn.
      last_slot = std::max({p.busy[0] + p.slowed[0] + t.per_backward, p.backward[0], t.backward_floor});
      least = std::max({p.busy_forward[0] + t.per_forward, p.forward[0], t.forward_floor}) + last_slot +
              p.weight[0];
      // The last layer copied out of a micro-batch comes back before its own backward and that of all before it.
      if (copies) {
        const PipelineTimes::OffloadedChunk& o = p.offloaded[0];
        const int copied = o.last - o.first;
        least = std::max(least, o.forward + copied * (o.copy_out + o.backward) + o.copy_in);
        last_slot = std::max(last_slot, least - p.forward[0] - t.per_forward);
      }
    }
    double work = m * std::max(slots + per_slots, least), computed = m * (slots - slowed + per_slots);
    if (least > slots + per_slots) on_compute = 0;
    double last_send = 0;
    if (!p.beside && p.pp > 1) {  // sends of activations and gradients occupy the sender
      const int forwards = p.vp - (s == p.pp - 1 ? 1 : 0), backwards = p.vp - (s == 0 ? 1 : 0);
      const double gradient = s > 0 ? p.send[chunk - 1] : p.send[static_cast<std::size_t>(p.pp - 1)];
      const double sends = m * (forwards * p.send[chunk] + backwards * gradient);
      work += sends;
      computed += sends;
      last_send = s > 0 ? gradient : 0.0;
    }
    const double undisturbed = head + work;
    double lane = std::max(undisturbed, copies ? late + m * slots : 0.0);
    // A wait inside the first forward may be filled by what is slowed before it.
    if (p.pp == 1) lane = std::max(lane, alone_bound(p, t, s, arrival, computed));
    end = std::max(end, p.copies[chunk]);
    last_send += t.per_backward;  // the last gradient may leave before the slot's last reduction
    end = std::max({end, lane + on_compute, t.lane_total});
    end = std::max(end, alone_bound(p, t, s, arrival, computed + t.on_compute));
    if (!split) {
      end = std::max({end, lane - last_send + back + first_tail, lane - last_send + t.last_beside});
      // What is slowed of them goes back later; beside the way back run collectives that slow nothing of this stage.
      const double left_after = (1 + p.slows * beside(p, t, s).lanes) * last_send,
                   way_back = std::max(0.0, back + first_tail - left_after);
      end = std::max(end, alone_bound(p, t, s, arrival, computed, way_back) + way_back);
      if (p.vp == 1) end = std::max(end, undisturbed - last_send - last_slot + t.beside_total);
    }
  }
  // 1F1B: the last stage's backward of micro-batch i goes back to the first stage, whose forward of i + pp waits for it
  // and comes all the way up again.
  if (p.vp == 1 && p.pp > 1 && p.schedule != PipelineSchedule::gpipe &&
      p.schedule != PipelineSchedule::interleaved) {
    double round = 0, arrival = 0;
    for (int s = 0; s < p.pp; ++s) {
      const auto i = static_cast<std::size_t>(s);
      round += p.forward[i] + p.backward[i] + (s + 1 < p.pp ? 2 * p.send[i] : 0.0);
      if (s + 1 < p.pp) arrival += p.forward[i] + p.send[i];
    }
    const auto last = static_cast<std::size_t>(p.pp - 1);
    const int rounds = (p.microbatches - 1) / p.pp, first = (p.microbatches - 1) % p.pp + 1;
    const double start = state.empty() ? 0.0 : of(0).start;
    end =
        std::max(end, start + arrival + first * (p.forward[last] + p.backward[last]) + rounds * round + back);
  }
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
