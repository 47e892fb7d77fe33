#include "planner/bound.hpp"

#include <algorithm>
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
  const bool steady = !c.ring_gradients() && !c.ring_parameters() && plan.activation_offload == 0;
  if (sp && !split && steady) {
    const double between_mlp_and_qkv = leave + norm + attention_half - leave - norm;  // to the end of qkv
    const double between_qkv_and_mlp = leave + norm + enter + priced.block(BlockKind::mlp, back);
    const double gather = priced.of(w.tp_gather);
    if (gather > 0 && gather <= std::min(between_mlp_and_qkv, between_qkv_and_mlp))
      t.slowed = 2 * gather * job.stack.kernels.comm_slows_compute;
  }
  return t;
}

PipelineTimes pipeline_times(const ParallelPlan& plan, const ModelSpec& model, const StackSpec& stack,
                             int microbatches, const std::vector<LayerTimes>& by_stage) {
  PipelineTimes p;
  p.pp = plan.pp, p.vp = plan.vp, p.microbatches = microbatches, p.schedule = plan.schedule;
  p.beside = plan.schedule == PipelineSchedule::interleaved ? stack.rules.p2p_beside_compute_interleaved
                                                            : stack.rules.p2p_beside_compute_1f1b;
  const auto ranges = layer_ranges(plan, model.n_layers);
  const int n = plan.pp * plan.vp;
  p.forward.resize(static_cast<std::size_t>(n));
  p.backward = p.weight = p.layer_backward = p.forward;
  for (int chunk = 0; chunk < n; ++chunk) {
    const auto i = static_cast<std::size_t>(chunk);
    const LayerTimes& t = by_stage[by_stage.size() == 1 ? 0 : static_cast<std::size_t>(chunk % plan.pp)];
    const int count = ranges[i].count;
    const int again = plan.recompute.kind != RecomputeKind::full
                          ? 0
                          : (plan.recompute.layers < 0 ? count : std::min(count, plan.recompute.layers));
    const int kept = count - again;
    p.forward[i] = count * t.forward;
    p.backward[i] = again * (t.recompute + t.backward_again) + kept * t.backward;
    // With recomputed layers the gathers of kept ones follow one another only among themselves.
    if (again == 0 && kept > 1) p.backward[i] += (kept - 1) * t.slowed;
    p.weight[i] = count * t.weight;
    p.layer_backward[i] = std::min(t.backward, t.recompute + t.backward_again);
    if (chunk == 0) p.forward[i] += t.embedding_forward, p.backward[i] += t.embedding_backward;
    if (chunk == n - 1) {
      p.forward[i] += t.head_forward, p.backward[i] += t.head_backward, p.weight[i] += t.head_weight;
    } else {
      p.forward[i] += t.residual;
    }
  }
  for (int s = 0; s < plan.pp; ++s)
    p.send.push_back(by_stage[by_stage.size() == 1 ? 0 : static_cast<std::size_t>(s)].send);
  return p;
}

double closing_time(const Job& job, const PlanLinks& links) {
  if (!job.stack.rules.clip_gradients) return 0;
  return job.cost.price(CollectiveWork{CollectiveKind::all_reduce, Bytes(8), links.world, false}).duration.v;
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
      host = std::llround(plan.optimizer_offload * static_cast<double>(slice));
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
    if (gather && plan.overlap_param_gather)
      for (const Parameter& p : layout.parameters) {
        double& ready = t.ready[static_cast<std::size_t>(p.chunk / plan.pp)];
        ready = std::max(ready, gathered[p.bucket]);
      }

    // Units fetched for every pass.
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
      // Units fetched ahead may be gathered in an earlier slot than the one that reads them.
      if (c.unit_ring_count() > 1)
        t.lane_total = std::max(t.lane_total, c.microbatches * (forward + backward));
      else
        t.per_forward += forward, t.per_backward += backward;
      t.lane_total = std::max(t.lane_total, c.microbatches * copies);
    }

    // Reductions of the last micro-batch, or of each.
    double every = 0;
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
    out.push_back(std::move(t));
  }
  return out;
}

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
    double slots = 0;
    for (int v = 0; v < p.vp; ++v) {
      const auto i = static_cast<std::size_t>(v * p.pp + s);
      slots += p.forward[i] + p.backward[i] + p.weight[i];
    }
    double work = m * (slots + t.per_forward + t.per_backward);
    double last_send = 0;
    if (!p.beside && p.pp > 1) {  // sends of activations and gradients occupy the sender
      const int forwards = p.vp - (s == p.pp - 1 ? 1 : 0), backwards = p.vp - (s == 0 ? 1 : 0);
      const double gradient = s > 0 ? p.send[chunk - 1] : p.send[static_cast<std::size_t>(p.pp - 1)];
      work += m * (forwards * p.send[chunk] + backwards * gradient);
      last_send = s > 0 ? gradient : 0.0;
    }
    const double lane = head + work;
    last_send += t.per_backward;  // the last gradient may leave before the slot's last reduction
    end = std::max({end, lane + t.on_compute, t.lane_total});
    if (!split) {
      end = std::max({end, lane - last_send + back + first_tail, lane - last_send + t.last_beside});
      if (p.vp == 1) end = std::max(end, lane - last_send - p.backward[chunk] + t.beside_total);
    }
  }
  return end + closing;
}

double slot_bound(const PipelineTimes& p, const std::vector<StateTimes>& state, double closing,
                  const std::vector<StageSlot>& order) {
  const auto pp = static_cast<std::size_t>(p.pp);
  const std::size_t n_chunks = pp * static_cast<std::size_t>(p.vp),
                    m = static_cast<std::size_t>(p.microbatches);
  std::vector<double> lane(pp, 0.0), to_next(pp, 0.0), to_previous(pp, 0.0);       // free again
  std::vector<double> activation(n_chunks * m, 0.0), gradient(n_chunks * m, 0.0);  // arrived
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
    if (!forward && mb + 1 == m) last_start[chunk] = end;
    end += forward ? p.forward[chunk] : p.backward[chunk];
    if (!state.empty()) {
      if (forward && mb == 0) end = std::max(end, state[s].ready[v]);
    }
    free = end;
    // Fetches and reductions on the compute lane; what the slot sends may leave before the last of them. With several
    // chunks or a split backward it is not known here which slot needs how much.
    if (!state.empty() && p.vp == 1 && p.schedule != PipelineSchedule::zero_bubble)
      free += forward ? state[s].per_forward : state[s].per_backward;
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
  for (std::size_t s = 0; s < pp; ++s) {
    end = std::max(end, lane[s]);
    if (state.empty()) continue;
    end = std::max({end, lane[s] + state[s].on_compute_last, state[s].lane_total});
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
  const PipelineTimes pipeline = pipeline_times(plan, job.model, job.stack, m, layers);
  const std::vector<StateTimes> state = state_times(job, plan, links);
  const double closing = closing_time(job, links);
  return Seconds(
      std::max(closed_bound(pipeline, state, closing),
               slot_bound(pipeline, state, closing, merged_order(plan.schedule, plan.pp, plan.vp, m))));
}

}  // namespace sextant
