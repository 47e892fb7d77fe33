#include "planner/bound.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/parameter_layout.hpp"
#include "planner/lowering/shapes.hpp"

namespace sextant {
namespace {

using lowering::Context;
using lowering::StageWorks;

// Prices of the works that one stage's operations share, made by the same function that lower() uses.
class Priced {
 public:
  Priced(const Job& job, const Context& c)
      : job_(job), emitter_(graph_, false), works_(lowering::stage_works(emitter_, c).front()) {}
  double block(BlockKind kind, Pass pass) const { return of(works_[kind][pass]); }
  double of(WorkId id) const { return job_.cost.price(graph_.works[id]).duration.v; }
  const StageWorks& works() const { return works_; }

 private:
  const Job& job_;
  ExecutionGraph graph_;
  lowering::Emitter emitter_;
  StageWorks works_;
};

}  // namespace

LayerTimes layer_times(const Job& job, const ParallelPlan& plan, const StageLinks* stage_links) {
  PlanLinks links;
  links.stages = {stage_links ? *stage_links : StageLinks{}};
  const Context c = lowering::make_context(job.model, job.training, links, plan, job.stack);
  const Priced priced(job, c);
  const StageWorks& w = priced.works();
  const bool linked = stage_links != nullptr, split = c.split_backward();
  const bool tp = linked && plan.tp > 1, sp = linked && c.sp(), cp = linked && plan.cp > 1;
  const double enter = sp ? priced.of(w.tp_gather) : 0.0;
  const double leave = !tp ? 0.0 : priced.of(sp ? w.tp_scatter : w.tp_reduce);
  const double cp_gather = cp ? priced.of(w.cp_gather) : 0.0, cp_scatter = cp ? priced.of(w.cp_scatter) : 0.0;
  const auto pass = [&](Pass p) {
    return 2 * priced.block(BlockKind::norm, p) + priced.block(BlockKind::qkv, p) +
           priced.block(BlockKind::attention, p) + priced.block(BlockKind::mlp, p) + 2 * enter + 2 * leave +
           cp_gather;
  };
  // Mirrors planner/lowering/passes.cpp.
  LayerTimes t;
  t.forward = pass(Pass::forward);
  if (plan.recompute.kind == RecomputeKind::full) t.recompute = pass(Pass::recompute);
  const Pass back = split ? Pass::backward_input : Pass::backward;
  const double norm = priced.block(BlockKind::norm, Pass::backward);
  const double mlp_half = enter + priced.block(BlockKind::mlp, back) + leave + norm;
  const double attention_half = enter + cp_gather + priced.block(BlockKind::attention, back) + cp_scatter +
                                priced.block(BlockKind::qkv, back) + leave + norm;
  t.backward = t.backward_again = mlp_half + attention_half;
  t.embedding_forward = priced.block(BlockKind::embedding, Pass::forward) + leave;
  t.embedding_backward = enter + priced.block(BlockKind::embedding, Pass::backward);
  t.residual = priced.block(BlockKind::residual, Pass::forward);
  t.head_forward = priced.block(BlockKind::norm, Pass::forward) + enter +
                   priced.block(BlockKind::head, Pass::forward) + (tp ? priced.of(w.loss_gather) : 0.0);
  t.head_backward = enter + priced.block(BlockKind::head, back) + leave + norm;
  if (split) {
    t.weight = 2 * enter + priced.block(BlockKind::mlp, Pass::backward_weight) +
               priced.block(BlockKind::attention, Pass::backward_weight) +
               priced.block(BlockKind::qkv, Pass::backward_weight);
    t.head_weight = enter + priced.block(BlockKind::head, Pass::backward_weight);
  }
  if (linked && plan.pp > 1) t.send = priced.of(w.send);

  // Inputs gathered again under SP run beside compute from the reader before the last one on. Where the compute between
  // two readers is longer than the gather, and nothing else can hold it up, all of the gather is beside compute.
  if (sp && !split) t.regather = 2 * priced.of(w.tp_gather);
  if (linked && plan.activation_offload > 0)
    t.copy_out = priced.of(w.copy_out), t.copy_in = priced.of(w.copy_in);
  if (sp && !split) {
    const double between_mlp_and_qkv = leave + norm + attention_half - leave - norm;  // to the end of qkv
    const double between_qkv_and_mlp = leave + norm + enter + priced.block(BlockKind::mlp, back);
    const double gather = priced.of(w.tp_gather);
    if (gather > 0 && gather <= std::min(between_mlp_and_qkv, between_qkv_and_mlp))
      t.slowed = 2 * gather * job.stack.kernels.comm_slows_compute;
  }
  return t;
}

bool is_steady(const ParallelPlan& plan, const StackRules& rules) {
  return plan.activation_offload == 0 && !plan.parameter_offload && plan.zero_stage < 3 &&
         !(plan.zero_stage == 2 && rules.reduce_every_microbatch);
}

namespace {

// A backward slot whose last `offloaded` layers (the chunk's first) come back from the host through a ring: a layer's
// copy may begin once the layer `ring` before it is done. What fits the ring is there when the slot begins.
double fetched_backward(double before, int offloaded, double layer, double copy, int ring) {
  double compute = before, lane = 0;
  std::array<double, 8> done{};  // of the last layers, by turn
  const int turns = std::min<int>(ring, static_cast<int>(done.size()));
  if (turns < ring || offloaded <= ring) return before + offloaded * layer;
  for (int k = 0; k < offloaded; ++k) {
    double there = 0;
    if (k >= ring) there = lane = std::max(lane, done[static_cast<std::size_t>(k % turns)]) + copy;
    compute = std::max(compute, there) + layer;
    done[static_cast<std::size_t>(k % turns)] = compute;
  }
  return compute;
}

}  // namespace

void pipeline_times(const ParallelPlan& plan, const std::vector<LayerRange>& chunks, const StackSpec& stack,
                    int microbatches, const std::vector<LayerTimes>& by_stage, bool steady,
                    PipelineTimes& p) {
  p.pp = plan.pp, p.vp = plan.vp, p.microbatches = microbatches, p.schedule = plan.schedule;
  p.beside = plan.schedule == PipelineSchedule::interleaved ? stack.rules.p2p_beside_compute_interleaved
                                                            : stack.rules.p2p_beside_compute_1f1b;
  const int n = plan.pp * plan.vp;
  for (auto* list : {&p.forward, &p.backward, &p.busy, &p.weight, &p.layer_backward, &p.slowed, &p.regather})
    list->assign(static_cast<std::size_t>(n), 0.0);
  for (auto* list : {&p.copies, &p.send}) list->assign(static_cast<std::size_t>(plan.pp), 0.0);
  p.slows = stack.kernels.comm_slows_compute;
  p.ring = plan.offload_horizon + 1;
  p.offloaded.assign(plan.activation_offload > 0 ? static_cast<std::size_t>(n) : 0, {});
  for (int chunk = 0; chunk < n; ++chunk) {
    const auto i = static_cast<std::size_t>(chunk), stage = static_cast<std::size_t>(chunk % plan.pp);
    const LayerTimes& t = by_stage[by_stage.size() == 1 ? 0 : stage];
    const int count = chunks[i].count;
    const int again = plan.recompute.kind != RecomputeKind::full
                          ? 0
                          : (plan.recompute.layers < 0 ? count : std::min(count, plan.recompute.layers));
    const int kept = count - again;
    p.forward[i] = count * t.forward;
    p.backward[i] = kept * t.backward;
    const int offloaded = std::max(0, std::min(plan.activation_offload, count) - again);
    if (offloaded > 0) {
      const double before = (kept - offloaded) * t.backward + (chunk == n - 1 ? t.head_backward : 0.0);
      p.backward[i] = fetched_backward(before, offloaded, t.backward, t.copy_in, plan.offload_horizon + 1) -
                      (chunk == n - 1 ? t.head_backward : 0.0);
      p.copies[stage] += microbatches * offloaded * std::max(t.copy_out, t.copy_in);
    }
    if (!p.offloaded.empty())
      p.offloaded[i] = {count,
                        again,
                        again + offloaded,
                        t.forward,
                        t.backward,
                        t.recompute + t.backward_again,
                        t.copy_out,
                        t.copy_in,
                        chunk == 0 ? t.embedding_forward : 0.0,
                        chunk == n - 1 ? t.head_backward : 0.0};
    p.busy[i] = kept * t.backward + again * (t.recompute + t.backward_again);
    p.backward[i] += again * (t.recompute + t.backward_again);
    // With recomputed layers the gathers of kept ones follow one another only among themselves.
    if (steady && again == 0 && kept > 1) p.slowed[i] = (kept - 1) * t.slowed;
    p.backward[i] += p.slowed[i];
    p.regather[i] = kept * t.regather;
    p.weight[i] = count * t.weight;
    p.layer_backward[i] = again == 0 ? t.backward : std::min(t.backward, t.recompute + t.backward_again);
    if (chunk == 0) {
      p.forward[i] += t.embedding_forward;
      p.backward[i] += t.embedding_backward, p.busy[i] += t.embedding_backward;
    }
    if (chunk == n - 1) {
      p.forward[i] += t.head_forward, p.weight[i] += t.head_weight;
      p.backward[i] += t.head_backward, p.busy[i] += t.head_backward;
    } else {
      p.forward[i] += t.residual;
    }
    p.send[stage] = t.send;
  }
}

double closing_time(const Job& job, const PlanLinks& links) {
  if (!job.stack.rules.clip_gradients) return 0;
  return job.cost.price(CollectiveWork{CollectiveKind::all_reduce, Bytes(8), links.world, false}).duration.v;
}

StateTimes StateTimes::relaxed(int microbatches) const {
  StateTimes t;
  t.start = earliest;
  t.lane_total = std::max(lane_total, microbatches * per_backward);
  return t;
}

// Mirrors planner/lowering/update.cpp, reduce.cpp and units.cpp.
std::vector<StateTimes> state_times(const Job& job, const ParallelPlan& plan, const PlanLinks& plan_links) {
  const Context c = lowering::make_context(job.model, job.training, plan_links, plan, job.stack);
  const auto seconds = [&](const Work& work) { return job.cost.price(work).duration.v; };
  const auto state_work = [&](StateKind kind, std::int64_t elements, bool host = false) {
    return seconds(StateWork{kind, elements, job.training.parameter, job.training.gradient, host});
  };
  const StackRules& rules = job.stack.rules;
  const bool beside = plan.overlap_grad_reduce && plan.replicas() > 1;
  std::vector<StateTimes> out;
  for (int stage = 0; stage < plan.pp; ++stage) {
    const ParameterLayout layout = parameter_layout(job.model, plan, rules, stage);
    const StageLinks& links = plan_links.of(stage);
    const int n = static_cast<int>(layout.buckets.size());
    const bool gather = layout.shards > 1 && !c.ring_parameters();
    const bool pipelined = gather && rules.pipelined_update && plan.overlap_param_gather;
    StateTimes t;
    t.ready.assign(static_cast<std::size_t>(plan.vp), 0.0);

    std::vector<double> gathers(layout.buckets.size(), 0.0), gathered(layout.buckets.size(), 0.0);
    std::int64_t device_all = 0, host_all = 0;
    const auto device_of = [&](const Bucket& b, std::int64_t& host) {
      const std::int64_t slice = b.slice(layout.shards);
      host = host_share(plan, slice);
      return slice - host;
    };
    double update = 0, lane = 0;
    for (int b = n - 1; b >= 0; --b) {
      const auto i = static_cast<std::size_t>(b);
      const Bucket& bucket = layout.buckets[i];
      std::int64_t host = 0;
      const std::int64_t device = device_of(bucket, host);
      device_all += device, host_all += host;
      if (layout.shards > 1)
        gathers[i] = seconds(CollectiveWork{CollectiveKind::all_gather,
                                            Bytes(bucket.elements * size_bytes(job.training.parameter)),
                                            links.shard, false});
      if (pipelined) {
        if (device > 0) update += state_work(StateKind::update, device);
        lane = std::max(lane, update) + gathers[i];
        gathered[i] = lane;
      }
    }
    double host_back = 0;  // parameters updated on the host are here
    if (!pipelined) {
      if (device_all > 0) update = state_work(StateKind::update, device_all);
      if (host_all > 0) {
        host_back = state_work(StateKind::update, host_all, true);
        if (!plan.parameter_offload)
          host_back += seconds(
              CopyWork{Bytes(host_all * size_bytes(job.training.parameter)), CopyDirection::host_to_device});
      }
    }
    t.start = update;
    if (gather && !pipelined) {
      if (plan.overlap_param_gather) {
        lane = std::max(update, host_back);
        for (int b = n - 1; b >= 0; --b)
          gathered[static_cast<std::size_t>(b)] = lane += gathers[static_cast<std::size_t>(b)];
      } else {
        t.start = std::max(update, host_back) + std::accumulate(gathers.begin(), gathers.end(), 0.0);
      }
    }
    if (!gather && !c.ring_parameters()) t.start = std::max(t.start, host_back);
    if (gather && plan.overlap_param_gather && !rules.gather_beside_forward)
      t.start = std::max(t.start, lane);
    if (!c.ring_gradients()) t.start += state_work(StateKind::zero, layout.padded);
    // The first operation of a stage reads the bucket that is gathered first.
    t.earliest = std::max(t.start, host_back);
    if (gather && plan.overlap_param_gather && n > 0)
      t.start = std::max(t.start, gathered[static_cast<std::size_t>(n - 1)]);
    if (gather && plan.overlap_param_gather)
      for (const Parameter& p : layout.parameters) {
        double& ready = t.ready[static_cast<std::size_t>(p.chunk / plan.pp)];
        ready = std::max(ready, gathered[p.bucket]);
      }

    // Units fetched for every pass.
    double fetched = 0, unit_gather = 0;  // the latter of one layer
    if (c.ring_parameters()) {
      double forward = 0, backward = 0, copies = 0;
      for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
        const Parameter& p = layout.parameters[layout.buckets[i].first];
        const bool again =
            p.kind != ParameterKind::embedding;  // the embedding is not read in the backward pass
        forward += gathers[i];
        if (again) backward += gathers[i];
        if (plan.parameter_offload)
          copies += (again ? 2 : 1) * seconds(CopyWork{Bytes(layout.buckets[i].slice(layout.shards) *
                                                             size_bytes(job.training.parameter)),
                                                       CopyDirection::host_to_device});
      }
      fetched = forward + backward;
      // The first unit is fetched once everything is updated.
      t.earliest = t.start =
          std::max({t.start, host_back, plan.overlap_param_gather ? update + gathers.back() : 0.0});
      if (plan.overlap_param_gather && layout.shards > 1 && plan.pp == 1)
        for (const Bucket& bucket : layout.buckets)
          if (layout.parameters[bucket.first].kind == ParameterKind::down)
            unit_gather = gathers[static_cast<std::size_t>(&bucket - layout.buckets.data())];
      // Units fetched ahead may be gathered in an earlier slot than the one that reads them.
      if (c.unit_ring_count() > 1)
        t.lane_total = std::max(t.lane_total, c.microbatches * fetched);
      else
        t.per_forward += forward, t.per_backward += backward;
      t.lane_total = std::max(t.lane_total, c.microbatches * copies);
    }

    // Reductions of the last micro-batch, or of each.
    double every = 0, unit_reduce = 0, largest_reduce = 0;
    const auto ranges = c.ranges;
    for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
      const Bucket& bucket = layout.buckets[i];
      const std::int64_t slice = bucket.slice(layout.shards);
      double each = 0;
      if (c.sp()) {
        std::int64_t norms = 0;
        for (std::uint32_t k = bucket.first; k < bucket.first + bucket.count; ++k)
          if (gradient_writer(layout.parameters[k].kind) == BlockKind::norm)
            norms += layout.parameters[k].elements;
        if (norms > 0)
          each += seconds(CollectiveWork{CollectiveKind::all_reduce,
                                         Bytes(norms * size_bytes(job.training.gradient)), links.tp, false});
      }
      if (plan.replicas() > 1)
        each += seconds(
            CollectiveWork{layout.shards > 1 ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
                           Bytes(bucket.elements * size_bytes(job.training.reduction)), links.shard, false});
      if (links.replica.size > 1 && layout.shards > 1)
        each +=
            seconds(CollectiveWork{CollectiveKind::all_reduce,
                                   Bytes(slice * size_bytes(job.training.reduction)), links.replica, false});
      if (c.ring_gradients()) each += state_work(StateKind::accumulate, slice);
      const double once = rules.clip_gradients ? state_work(StateKind::norm, slice) : 0.0;
      every += each;
      largest_reduce = std::max(largest_reduce, each);
      if (layout.parameters[bucket.first].kind == ParameterKind::down) unit_reduce = each;
      const Parameter& last = layout.parameters[bucket.first + bucket.count - 1];
      if (!beside) {
        t.on_compute += once;
        if (last.chunk < plan.pp) t.on_compute_last += once + (c.ring_gradients() ? 0.0 : each);
        // The copies of a tied embedding are reduced behind their exchange, not in the last slot.
        const ParameterKind first = layout.parameters[bucket.first].kind;
        const bool tied = job.model.tied_embeddings && plan.pp > 1 &&
                          (first == ParameterKind::embedding || first == ParameterKind::head);
        if (c.ring_gradients())
          t.per_backward += tied ? 0.0 : each;
        else
          t.on_compute += each;
        continue;
      }
      const auto range = ranges[last.chunk];
      int before = 0;  // layers whose backward comes first
      if (last.kind == ParameterKind::embedding)
        before = range.count;
      else if (last.kind != ParameterKind::head && last.kind != ParameterKind::norm_final)
        before = std::max(0, range.first + range.count - 1 - static_cast<int>(last.layer));
      t.beside.push_back({static_cast<std::uint16_t>(last.chunk / plan.pp),
                          static_cast<std::uint16_t>(before), each + once});
      t.beside_total += each + once;
    }
    if (!t.beside.empty()) t.last_beside = t.beside.back().seconds;
    if (beside && c.ring_gradients()) t.lane_total = std::max(t.lane_total, c.microbatches * every);
    // Layer by layer, a unit's reduction and the fetch of the unit after the next wait for its backward and, on a lane
    // that they share, for one another; gradients of a third bucket wait for the first one's place in the ring.
    if (plan.pp == 1) {
      const int n_layers = job.model.n_layers - 1 - static_cast<int>(c.unit_ring_count());
      const bool together = beside && c.ring_gradients() && unit_gather > 0;
      t.forward_floor = n_layers * unit_gather;
      t.backward_floor = n_layers * (unit_gather + (together ? unit_reduce : 0.0));
      if (beside && c.ring_gradients())
        t.backward_floor = std::max(t.backward_floor, every - 2 * largest_reduce);
    }
    // Overlapped fetches run on the reductions' lane when those are overlapped as well.
    const bool fetched_beside = c.ring_parameters() && plan.overlap_param_gather && layout.shards > 1;
    const double reduced = (c.ring_gradients() ? c.microbatches : 1) * every;
    if (fetched_beside && beside) t.lane_total = std::max(t.lane_total, c.microbatches * fetched + reduced);
    if (fetched_beside) t.collectives += c.microbatches * fetched;
    if (gather && plan.overlap_param_gather)
      t.collectives += std::accumulate(gathers.begin(), gathers.end(), 0.0);
    if (beside) t.collectives += std::max(0.0, reduced - t.last_beside);
    t.collective_lanes = (fetched_beside && plan.overlap_grad_reduce ? 0 : (t.collectives > 0 ? 1 : 0)) + 1;
    out.push_back(std::move(t));
  }
  return out;
}

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
  Copies(const PipelineTimes& p, std::size_t stages, std::size_t slots)
      : p_(p), out_lane_(stages, 0.0), in_lane_(stages, 0.0), turn_(stages, 0) {
    if (p.offloaded.empty()) return;
    readers_.assign(stages, std::vector<double>(static_cast<std::size_t>(p.ring), 0.0));
    copied_.resize(slots);
  }
  void forward(std::size_t stage, std::size_t chunk, std::size_t slot, double start) {
    if (p_.offloaded.empty()) return;
    const auto& o = p_.offloaded[chunk];
    auto& copied = copied_[slot];
    for (int i = o.first; i < o.last; ++i) {
      double& lane = out_lane_[stage];
      lane = std::max(lane, start + o.lead_forward + (i + 1) * o.forward) + o.copy_out;
      copied.push_back(lane);
    }
  }
  // The end of the backward of all layers, or of nothing when nothing is copied.
  double backward(std::size_t stage, std::size_t chunk, std::size_t slot, double start) {
    if (p_.offloaded.empty() || p_.offloaded[chunk].last == p_.offloaded[chunk].first) return 0;
    const auto& o = p_.offloaded[chunk];
    double time = start + o.lead_backward + (o.count - o.last) * o.backward;
    for (int i = o.last - 1; i >= o.first; --i) {
      double& reader = readers_[stage][turn_[stage]++ % readers_[stage].size()];
      double& lane = in_lane_[stage];
      lane = std::max({lane, reader, copied_[slot][static_cast<std::size_t>(i - o.first)]}) + o.copy_in;
      time = std::max(time, lane) + o.backward;
      reader = time;
    }
    return time + o.first * o.backward_again;
  }

 private:
  const PipelineTimes& p_;
  std::vector<double> out_lane_, in_lane_;
  std::vector<std::size_t> turn_;
  std::vector<std::vector<double>> readers_, copied_;
};

}  // namespace

double slot_bound(const PipelineTimes& p, const std::vector<StateTimes>& state, double closing,
                  const std::vector<StageSlot>& order) {
  const auto pp = static_cast<std::size_t>(p.pp);
  const std::size_t n_chunks = pp * static_cast<std::size_t>(p.vp),
                    m = static_cast<std::size_t>(p.microbatches);
  std::vector<double> lane(pp, 0.0), to_next(pp, 0.0), to_previous(pp, 0.0);       // free again
  std::vector<double> activation(n_chunks * m, 0.0), gradient(n_chunks * m, 0.0);  // arrived
  Copies copies(p, pp, n_chunks * m);
  std::vector<double> last_busy(pp, 0.0);         // end of the stage's last backward, but for its waits
  std::vector<double> last_start(n_chunks, 0.0);  // of the last micro-batch's backward
  for (std::size_t s = 0; s < pp && !state.empty(); ++s) lane[s] = state[s].start;
  for (const StageSlot& merged : order) {
    const auto s = static_cast<std::size_t>(merged.stage);
    const std::size_t v = merged.slot.chunk, mb = merged.slot.microbatch;
    const std::size_t chunk = v * pp + s, at = chunk * m + mb;
    double& free = lane[s];
    if (merged.slot.kind == SlotKind::weight) {
      free += p.weight[chunk];
      continue;
    }
    const bool forward = merged.slot.kind == SlotKind::forward;
    double end = std::max(free, forward ? activation[at] : gradient[at]);
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
    free = std::max(end, start + (forward ? p.forward[chunk] : p.busy[chunk]) + after);
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
  std::vector<LayerTimes> layers;
  for (const StageLinks& stage : links.stages) layers.push_back(layer_times(job, plan, &stage));
  const int m = microbatches(plan, job.training);
  PipelineTimes pipeline;
  pipeline_times(plan, layer_ranges(plan, job.model.n_layers), job.stack, m, layers,
                 is_steady(plan, job.stack.rules), pipeline);
  const std::vector<StateTimes> state = state_times(job, plan, links);
  const double closing = closing_time(job, links);
  return Seconds(
      std::max(closed_bound(pipeline, state, closing),
               slot_bound(pipeline, state, closing, merged_order(plan.schedule, plan.pp, plan.vp, m))));
}

}  // namespace sextant
