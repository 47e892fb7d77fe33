#include "planner/bound.hpp"

#include <algorithm>

#include "planner/predict.hpp"

namespace sextant {
namespace {

// One stage without a pipeline: whatever part of its collectives does not hold up compute runs beside it and slows it.
// With C the compute, G the collectives beside it on L lanes, c the slow-down, and x the end of compute in the first
// pass: the second pass ends at max(x, C + c (G - L (x - C))) or later, which is least at x = C + c G / (1 + c L).
double alone_bound(const PipelineTimes& p, const StateTimes& t, double head, double work) {
  if (p.slows <= 0) return 0;
  const double regather = p.microbatches * p.regather[0];
  const int lanes = t.collective_lanes + (regather > 0 ? 1 : 0);
  const double beside = std::max(0.0, t.collectives + regather - lanes * head);
  return head + work + p.slows * beside / (1 + p.slows * lanes);
}

}  // namespace

double closed_bound(const PipelineTimes& p, const std::vector<StateTimes>& state, double closing) {
  static const StateTimes kNone;
  const auto of = [&](int s) -> const StateTimes& {
    return state.empty() ? kNone : state[static_cast<std::size_t>(s)];
  };
  const bool split = p.schedule == PipelineSchedule::zero_bubble;
  const double m = p.microbatches;
  double head = 0;  // first forward of the stage begins
  double back = 0;  // from the end of the stage's last backward to the end of the first stage's
  double end = 0;
  const double first_tail = state.empty() ? 0.0 : of(0).last_beside;
  for (int s = 0; s < p.pp; ++s) {
    const StateTimes& t = of(s);
    const auto chunk = static_cast<std::size_t>(s);
    if (s > 0) {
      head += p.forward[chunk - 1] + p.send[chunk - 1];
      back += p.backward[chunk - 1] + p.send[chunk - 1];
    }
    head = std::max(head, t.start);
    if (!t.ready.empty()) head = std::max(head, t.ready[0] - p.forward[chunk]);
    double slots = 0, waits = 0;  // waits for copies inside slots, which other work of the slot may fill
    for (int v = 0; v < p.vp; ++v) {
      const auto i = static_cast<std::size_t>(v * p.pp + s);
      slots += p.forward[i] + p.busy[i] + p.slowed[i] + p.weight[i];
      waits += p.backward[i] - p.busy[i] - p.slowed[i];
    }
    double per_slots = t.per_forward + t.per_backward, on_compute = t.on_compute;
    double last_slot = p.backward[chunk], least = slots + waits;
    if (p.pp == 1) {
      // A single stage's slots hold their fetches, and are no shorter than those in turn.
      last_slot = std::max({p.busy[0] + p.slowed[0] + t.per_backward, p.backward[0], t.backward_floor});
      least = std::max(p.forward[0] + t.per_forward, t.forward_floor) + last_slot + p.weight[0];
      // The last layer copied out of a micro-batch comes back before its own backward and that of all before it.
      if (!p.offloaded.empty() && p.offloaded[0].last > p.offloaded[0].first) {
        const PipelineTimes::OffloadedChunk& o = p.offloaded[0];
        const int copied = o.last - o.first;
        least = std::max(least, o.forward + copied * (o.copy_out + o.backward) + o.copy_in);
        last_slot = std::max(last_slot, least - p.forward[0] - t.per_forward);
      }
    }
    double work = m * std::max(slots + per_slots, least);
    if (least > slots + per_slots) on_compute = 0;
    double last_send = 0;
    if (!p.beside && p.pp > 1) {  // sends of activations and gradients occupy the sender
      const int forwards = p.vp - (s == p.pp - 1 ? 1 : 0), backwards = p.vp - (s == 0 ? 1 : 0);
      const double gradient = s > 0 ? p.send[chunk - 1] : p.send[static_cast<std::size_t>(p.pp - 1)];
      work += m * (forwards * p.send[chunk] + backwards * gradient);
      last_send = s > 0 ? gradient : 0.0;
    }
    const double undisturbed = head + work;
    double lane = undisturbed;
    if (p.pp == 1)
      lane = std::max(
          lane, alone_bound(p, t, head,
                            m * (p.forward[0] + p.busy[0] + p.weight[0] + t.per_forward + t.per_backward)));
    end = std::max(end, p.copies[chunk]);
    last_send += t.per_backward;  // the last gradient may leave before the slot's last reduction
    end = std::max({end, lane + on_compute, t.lane_total});
    if (!split) {
      end = std::max({end, lane - last_send + back + first_tail, lane - last_send + t.last_beside});
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

namespace {

// Copies of offloaded activations as lower() orders them, layer by layer, on each stage's two copy lanes.
class Copies {
 public:
  Copies(const PipelineTimes& p, std::size_t stages, std::size_t slots, SlotScratch& scratch)
      : p_(p), s_(scratch), ring_(static_cast<std::size_t>(p.ring)) {
    if (p.offloaded.empty()) return;
    for (const auto& o : p.offloaded) most_ = std::max(most_, static_cast<std::size_t>(o.last - o.first));
    s_.out_lane.assign(stages, 0.0), s_.in_lane.assign(stages, 0.0), s_.turn.assign(stages, 0);
    s_.readers.assign(stages * ring_, 0.0);
    s_.copied.resize(std::max(s_.copied.size(), slots * most_));  // written before it is read
  }
  void forward(std::size_t stage, std::size_t chunk, std::size_t slot, double start) {
    if (p_.offloaded.empty()) return;
    const auto& o = p_.offloaded[chunk];
    double* copied = s_.copied.data() + slot * most_;
    double& lane = s_.out_lane[stage];
    for (int i = o.first; i < o.last; ++i)
      *copied++ = lane = std::max(lane, start + o.lead_forward + (i + 1) * o.forward) + o.copy_out;
  }
  // The end of the backward of all layers, or of nothing when nothing is copied.
  double backward(std::size_t stage, std::size_t chunk, std::size_t slot, double start) {
    if (p_.offloaded.empty() || p_.offloaded[chunk].last == p_.offloaded[chunk].first) return 0;
    const auto& o = p_.offloaded[chunk];
    const double* copied = s_.copied.data() + slot * most_;
    double time = start + o.lead_backward + (o.count - o.last) * o.backward;
    double& lane = s_.in_lane[stage];
    std::size_t& turn = s_.turn[stage];
    for (int i = o.last - o.first - 1; i >= 0; --i) {
      double& reader = s_.readers[stage * ring_ + turn];
      turn = turn + 1 == ring_ ? 0 : turn + 1;
      lane = std::max({lane, reader, copied[i]}) + o.copy_in;
      reader = time = std::max(time, lane) + o.backward;
    }
    return time + o.first * o.backward_again;
  }

 private:
  const PipelineTimes& p_;
  SlotScratch& s_;
  std::size_t ring_, most_ = 0;
};

}  // namespace

double slot_bound(const PipelineTimes& p, const std::vector<StateTimes>& state, double closing,
                  const std::vector<StageSlot>& order, SlotScratch& scratch, double limit) {
  const auto pp = static_cast<std::size_t>(p.pp);
  const std::size_t n_chunks = pp * static_cast<std::size_t>(p.vp),
                    m = static_cast<std::size_t>(p.microbatches);
  auto& lane = scratch.lane;
  auto &to_next = scratch.to_next, &to_previous = scratch.to_previous, &last_busy = scratch.last_busy;
  auto &last_start = scratch.last_start, &activation = scratch.activation, &gradient = scratch.gradient;
  for (auto* list : {&lane, &to_next, &to_previous, &last_busy}) list->assign(pp, 0.0);
  last_start.assign(n_chunks, 0.0);
  // Written before they are read.
  activation.resize(std::max(activation.size(), n_chunks * m));
  gradient.resize(activation.size());
  Copies copies(p, pp, n_chunks * m, scratch);
  for (std::size_t s = 0; s < pp && !state.empty(); ++s) lane[s] = state[s].start;
  auto& left = scratch.left;
  left.assign(pp, 0.0);
  for (std::size_t chunk = 0; chunk < n_chunks; ++chunk)
    left[chunk % pp] += p.microbatches * (p.forward[chunk] + p.busy[chunk] + p.weight[chunk]);
  const double hopeless = (limit - closing) * (1 + 1e-9);  // room for roundings of `left`
  for (const StageSlot& merged : order) {
    const auto s = static_cast<std::size_t>(merged.stage);
    const std::size_t v = merged.slot.chunk, mb = merged.slot.microbatch;
    const std::size_t chunk = v * pp + s, at = chunk * m + mb;
    double& free = lane[s];
    if (merged.slot.kind == SlotKind::weight) {
      free += p.weight[chunk], left[s] -= p.weight[chunk];
      continue;
    }
    const bool forward = merged.slot.kind == SlotKind::forward;
    const bool starts = forward ? chunk == 0 : chunk + 1 == n_chunks;
    double end = starts ? free : std::max(free, forward ? activation[at] : gradient[at]);
    const double copied = forward ? 0.0 : copies.backward(s, chunk, at, end);
    if (forward) copies.forward(s, chunk, at, end);
    if (!forward && mb + 1 == m) last_start[chunk] = end;
    const double start = end;
    end = std::max(end + (forward ? p.forward[chunk] : p.backward[chunk]), copied);
    // Fetches and reductions on the compute lane; what the slot sends may leave before the last of them. With several
    // chunks or a split backward it is not known here which slot needs how much.
    double after = 0;
    if (!state.empty()) {
      if (forward && mb == 0 && !state[s].ready.empty()) end = std::max(end, state[s].ready[v]);
      if (p.vp == 1 && p.schedule != PipelineSchedule::zero_bubble)
        after = forward ? state[s].per_forward : state[s].per_backward;
      if (p.pp == 1)
        end = std::max(end, start + (forward ? state[s].forward_floor : state[s].backward_floor));
    }
    // They may fill what waits the slot has.
    const double compute = forward ? p.forward[chunk] : p.busy[chunk];
    free = std::max(end, start + compute + after);
    left[s] -= compute;
    if (free + left[s] > hopeless) return free + left[s] + closing;
    if (!forward && mb + 1 == m) last_busy[s] = start + p.busy[chunk] + after;
    const bool stops = forward ? chunk + 1 == n_chunks : chunk == 0;
    if (stops) continue;
    const std::size_t target = forward ? chunk + 1 : chunk - 1;
    const std::size_t link = forward ? s : target % pp;
    double& way = forward ? to_next[s] : to_previous[s];
    const double arrival = (p.beside ? std::max(end, way) : free) + p.send[link];
    way = arrival;
    if (!p.beside) free = arrival;
    (forward ? activation : gradient)[target * m + mb] = arrival;
  }
  double end = 0;
  if (p.pp == 1 && !state.empty()) {
    const double work = p.microbatches * (p.forward[0] + p.busy[0] + p.weight[0] + state[0].per_forward +
                                          state[0].per_backward);
    lane[0] = std::max(lane[0], alone_bound(p, state[0], state[0].start, work));
  }
  for (std::size_t s = 0; s < pp; ++s) {
    end = std::max({end, lane[s], p.copies[s]});
    if (state.empty()) continue;
    end = std::max({end, last_busy[s] + state[s].on_compute_last, state[s].lane_total});
    if (p.pp == 1 && !state[s].beside.empty()) end = std::max(end, lane[s] + state[s].last_beside);
    double reduce = 0;
    for (const StateTimes::Reduction& r : state[s].beside) {
      const std::size_t chunk = r.chunk * pp + s;
      reduce = std::max(reduce, last_start[chunk] + r.layers * p.layer_backward[chunk]) + r.seconds;
    }
    end = std::max(end, reduce);
  }
  return end + closing;
}

Seconds step_lower_bound(const Job& job, const ParallelPlan& plan, const PlanLinks& links) {
  const BlockTimes blocks = block_times(job, plan);
  StageLayerTimes layers;
  const std::vector<double> factors = stage_compute_factors(job, plan);
  for (int stage = 0; stage < plan.pp; ++stage) {
    const double factor = factors.empty() ? 1.0 : factors[static_cast<std::size_t>(stage)];
    layers.index.push_back(static_cast<std::uint16_t>(stage));
    layers.distinct.push_back(layer_times(plan, blocks.slower(factor), link_times(job, plan, links.of(stage)),
                                          job.stack.kernels.comm_slows_compute));
  }
  const int m = microbatches(plan, job.training);
  PipelineTimes pipeline;
  pipeline_times(plan, layer_ranges(plan, job.model.n_layers), job.stack, m, layers,
                 is_steady(plan, job.stack.rules), pipeline);
  const std::vector<StateTimes> state = state_times(job, plan, links, stage_buckets(job, plan));
  const double closing = closing_time(job, links);
  SlotScratch scratch;
  return Seconds(std::max(
      closed_bound(pipeline, state, closing),
      slot_bound(pipeline, state, closing, merged_order(plan.schedule, plan.pp, plan.vp, m), scratch)));
}

}  // namespace sextant
