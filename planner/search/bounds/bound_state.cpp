// What parameters, gradients and optimizer state add to the bounds of a stage.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>

#include "core/graph/parameter_layout.hpp"
#include "planner/lowering/shapes.hpp"
#include "planner/search/bounds/bound.hpp"

namespace sextant {

using lowering::Context;

double closing_time(const Job& job, const PlanLinks& links) {
  if (!job.stack.rules.clip_gradients) return 0;
  return job.cost.price(CollectiveWork{CollectiveKind::all_reduce, Bytes(8), links.world, false}).duration.v;
}

double tied_exchange_time(const Job& job, const ParallelPlan& plan, const PlanLinks& links) {
  if (!job.model.tied_embeddings || plan.pp == 1) return 0;
  // Without a padding of buckets, and learned positions.
  std::int64_t elements =
      std::int64_t{job.model.hidden} * local_shape(job.model, plan.tp, job.stack.rules.vocab_multiple).vocab;
  if (reduces_every_microbatch(plan, job.stack.rules)) elements /= plan.shards();
  return job.cost
      .price(CollectiveWork{CollectiveKind::all_reduce, Bytes(elements * size_bytes(job.training.gradient)),
                            links.tied, false})
      .duration.v;
}

std::vector<StageBuckets> stage_buckets(const Job& job, const ParallelPlan& plan) {
  const std::vector<LayerRange> ranges = layer_ranges(plan, job.model.n_layers);
  const ParameterKind last_used = layer_parameters(job.model).front();
  std::vector<StageBuckets> out;
  const auto as_before = [&](int stage) {
    if (stage < 2 || stage + 1 == plan.pp) return false;
    for (std::size_t i = static_cast<std::size_t>(stage); i < ranges.size();
         i += static_cast<std::size_t>(plan.pp))
      if (ranges[i].count != ranges[i - 1].count) return false;
    return true;
  };
  for (int stage = 0; stage < plan.pp; ++stage) {
    if (as_before(stage)) {
      out.push_back(StageBuckets(out.back()));
      continue;
    }
    const ParameterLayout layout = parameter_layout(job.model, plan, job.stack.rules, stage);
    StageBuckets& mine = out.emplace_back();
    mine.shards = layout.shards;
    mine.padded = layout.padded;
    mine.elements = layout.elements;
    for (const Bucket& bucket : layout.buckets) {
      const Parameter& first = layout.parameters[bucket.first];
      const Parameter& last = layout.parameters[bucket.first + bucket.count - 1];
      BucketSize size{bucket.elements, bucket.slice(layout.shards), 0};
      for (std::uint32_t k = bucket.first; k < bucket.first + bucket.count; ++k)
        if (gradient_writer(layout.parameters[k].kind) == BlockKind::norm)
          size.norms += layout.parameters[k].elements;
      const auto same = std::find(mine.sizes.begin(), mine.sizes.end(), size);
      BucketView& view = mine.buckets.emplace_back();
      view.size = static_cast<std::uint16_t>(same - mine.sizes.begin());
      if (same == mine.sizes.end()) mine.sizes.push_back(size);
      view.first = first.kind;
      view.last = last.kind;
      view.first_chunk = static_cast<std::uint16_t>(first.chunk / plan.pp);
      view.last_chunk = static_cast<std::uint16_t>(last.chunk / plan.pp);
      const LayerRange range = ranges[last.chunk];
      int before = 0;
      if (last.kind == ParameterKind::embedding)
        before = range.count;
      else if (last.kind != ParameterKind::head && last.kind != ParameterKind::norm_final)
        before = std::max(0, range.first + range.count - 1 - static_cast<int>(last.layer));
      view.before = static_cast<std::uint16_t>(before);
      const bool with_head = last.kind == ParameterKind::head || last.kind == ParameterKind::norm_final;
      const StateTimes::Reduction point{view.last_chunk, view.before, with_head,
                                        last.kind == ParameterKind::embedding};
      if (mine.points.empty() || !mine.points.back().is_ready_with(point)) mine.points.push_back(point);
      view.point = static_cast<std::uint16_t>(mine.points.size() - 1);
    }
    mine.last_used = last_used;
    mine.layers = static_cast<int>(std::ranges::count(mine.buckets, last_used, &BucketView::first));
  }
  return out;
}

namespace {

// Layers whose modules are fetched one by one for a repeated forward, and then for the backward.
int repeated_modules(const Job& job, const ParallelPlan& plan, int stage) {
  if (!job.stack.rules.fetch_modules || plan.recompute.kind != RecomputeKind::full) return 0;
  const std::vector<LayerRange> chunks = layer_ranges(plan, job.model.n_layers);
  int layers = 0;
  for (auto i = static_cast<std::size_t>(stage); i < chunks.size(); i += static_cast<std::size_t>(plan.pp))
    layers += plan.recompute.layers < 0 ? chunks[i].count : std::min(chunks[i].count, plan.recompute.layers);
  return layers;
}

}  // namespace

// Mirrors planner/lowering/update.cpp, reduce.cpp and units.cpp.
StageStates state_times(const Job& job, const ParallelPlan& plan, const PlanLinks& plan_links,
                        const std::vector<StageBuckets>& by_stage, StateScratch& scratch,
                        std::span<const double> any_share) {
  const StackRules& rules = job.stack.rules;
  const bool ring_gradients = reduces_every_microbatch(plan, rules),
             ring_parameters = fetches_parameters(plan, rules), sp = plan.sequence_parallel && plan.tp > 1,
             split_backward = plan.schedule == PipelineSchedule::zero_bubble;
  const std::size_t unit_ring_count = Context::unit_ring_count(plan, rules);
  const int microbatches = sextant::microbatches(plan, job.training);
  // Every micro-batch but the first waits for each copy of gradients and its addition on the host.
  const bool host_sums = sums_gradients_on_host(plan, rules), waits = host_sums && microbatches > 1;
  const auto seconds = [&](const Work& work) { return job.cost.price(work).duration.v; };
  const auto state_work = [&](StateKind kind, std::int64_t elements, bool host = false) {
    return seconds(StateWork{kind, elements, job.training.parameter, job.training.gradient, host});
  };
  const bool beside = plan.overlap_grad_reduce && plan.replicas() > 1;
  const double exchange = tied_exchange_time(job, plan, plan_links);
  StageStates out;
  out.reserve(by_stage.size());
  // Parameters updated on the host come back by copy.
  const auto updated_on_host = [&](std::int64_t elements) {
    return elements > 0 ? state_work(StateKind::update, elements, true) : 0.0;
  };
  const auto copied_back = [&](std::int64_t elements) {
    return elements > 0 && !plan.parameter_offload
               ? seconds(CopyWork{Bytes(elements * size_bytes(job.training.parameter)),
                                  CopyDirection::host_to_device})
               : 0.0;
  };
  // The update on the device, and when what the host updates is back.
  const auto updated_at_once = [&](std::int64_t device, std::int64_t host) {
    return std::pair(device > 0 ? state_work(StateKind::update, device) : 0.0,
                     updated_on_host(host) + copied_back(host));
  };
  std::optional<double> most_on_host;
  if (!any_share.empty()) most_on_host = *std::ranges::max_element(any_share);
  auto& [by_size, gathers, gathered, reductions, copied] = scratch;
  for (int stage = 0; stage < plan.pp; ++stage) {
    const StageBuckets& layout = by_stage[static_cast<std::size_t>(stage)];
    if (stage > 0 && plan_links.index(stage) == plan_links.index(stage - 1) &&
        layout == by_stage[static_cast<std::size_t>(stage - 1)]) {
      out.repeat();
      continue;
    }
    const StageLinks& links = plan_links.of(stage);
    const int n = static_cast<int>(layout.buckets.size());
    const bool gather = layout.shards > 1 && !ring_parameters;
    const bool pipelined = gather && rules.pipelined_update && plan.overlap_param_gather;
    StateTimes t;

    by_size.clear();
    for (const BucketSize& size : layout.sizes) {
      SizeTimes& of = by_size.emplace_back();
      of.on_host = most_on_host.has_value() ? 0 : host_share(plan.optimizer_offload, size.slice);
      const std::int64_t device =
          size.slice - (most_on_host ? host_share(*most_on_host, size.slice) : of.on_host);
      if (layout.shards > 1)
        of.gather = seconds(CollectiveWork{CollectiveKind::all_gather,
                                           Bytes(size.elements * size_bytes(job.training.parameter)),
                                           links.shard, false});
      if (pipelined && device > 0) of.update = state_work(StateKind::update, device);
      if (pipelined) {
        of.host_update = updated_on_host(of.on_host);
        of.host_copy = copied_back(of.on_host);
      }
      if (of.on_host > 0)
        of.gradient_copy = seconds(
            CopyWork{Bytes(of.on_host * size_bytes(job.training.gradient)), CopyDirection::device_to_host});
      if (sp && size.norms > 0)
        of.reduce +=
            seconds(CollectiveWork{CollectiveKind::all_reduce,
                                   Bytes(size.norms * size_bytes(job.training.gradient)), links.tp, false});
      if (plan.replicas() > 1)
        of.reduce += seconds(
            CollectiveWork{layout.shards > 1 ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
                           Bytes(size.elements * size_bytes(job.training.reduction)), links.shard, false});
      if (links.replica.size > 1 && layout.shards > 1)
        of.reduce += seconds(CollectiveWork{CollectiveKind::all_reduce,
                                            Bytes(size.slice * size_bytes(job.training.reduction)),
                                            links.replica, false});
      if (ring_gradients && !host_sums) of.reduce += state_work(StateKind::accumulate, size.slice);
      if (rules.clip_gradients && !host_sums) of.norm = state_work(StateKind::norm, size.slice);
      if (waits) of.host_sum = state_work(StateKind::accumulate, size.slice, true);
    }

    gathers.assign(layout.buckets.size(), 0.0);
    gathered.assign(layout.buckets.size(), 0.0);
    std::int64_t device_all = 0, host_all = 0;
    double update = 0, host_update = 0, host_copy = 0, lane = 0;
    for (int b = n - 1; b >= 0; --b) {
      const auto i = static_cast<std::size_t>(b);
      SizeTimes& of = by_size[layout.buckets[i].size];
      ++of.count;
      device_all += layout.sizes[layout.buckets[i].size].slice - of.on_host;
      host_all += of.on_host;
      gathers[i] = of.gather;
      if (pipelined) {
        update += of.update;
        host_update += of.host_update;
        host_copy = std::max(host_copy, host_update) + of.host_copy;
        lane = std::max({lane, update, host_copy}) + of.gather;
        gathered[i] = lane;
      }
    }
    double host_back = 0;  // parameters updated on the host are here
    if (!pipelined) {
      std::tie(update, host_back) = updated_at_once(device_all, host_all);
      if (most_on_host) {
        update = host_back = INFINITY;
        for (const double share : any_share) {
          std::int64_t away = 0;
          for (std::size_t size = 0; size < layout.sizes.size(); ++size)
            away += by_size[size].count * host_share(share, layout.sizes[size].slice);
          const auto [here, back] = updated_at_once(device_all - away, away);
          update = std::min(update, here);
          host_back = std::min(host_back, std::max(here, back));
        }
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
    if (!gather && !ring_parameters) t.start = std::max(t.start, host_back);
    if (gather && plan.overlap_param_gather && !rules.gather_beside_forward)
      t.start = std::max(t.start, lane);
    const std::int64_t cleared = layout.padded - (rules.gradients_begin_written ? layout.elements : 0);
    if (!ring_gradients && cleared > 0) t.start += state_work(StateKind::zero, cleared);
    // The first operation of a stage reads the bucket that is gathered first.
    if (gather && plan.overlap_param_gather && n > 0)
      t.start = std::max(t.start, gathered[static_cast<std::size_t>(n - 1)]);
    if (gather && plan.overlap_param_gather) {
      t.ready.assign(static_cast<std::size_t>(plan.vp), {});
      for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
        const BucketView& bucket = layout.buckets[i];
        for (std::size_t v = bucket.last_chunk; v <= bucket.first_chunk; ++v)
          if (gathered[i] > t.ready[v].seconds)
            t.ready[v] = {gathered[i], v == bucket.last_chunk ? bucket.before : 0,
                          bucket.last == ParameterKind::head};
      }
    }

    if (gathers_every_microbatch(plan, rules)) {
      const double all = std::accumulate(gathers.begin(), gathers.end(), 0.0);
      if (plan.overlap_param_gather)
        t.lane_total = std::max(t.lane_total, microbatches * all);
      else
        t.on_compute += (microbatches - 1) * all;
    }

    // Units fetched for every pass.
    double fetched = 0, unit_gather = 0, unit_gather_back = 0;  // the latter two of one layer, in its passes
    const int layers = layout.layers;
    if (ring_parameters) {
      double forward = 0, backward = 0, copies = 0;
      const double repeated =
          layers > 0 ? static_cast<double>(repeated_modules(job, plan, stage)) / layers : 0;
      for (std::size_t i = 0; i < layout.buckets.size(); ++i) {
        const ParameterKind kind = layout.buckets[i].first;
        // The embedding is not read in the backward pass, and what the repeated forward used last is still there.
        const double back = (kind == ParameterKind::embedding ? 0 : 1) +
                            (is_of_layer(kind) && kind != layout.last_used ? repeated : 0.0);
        forward += gathers[i];
        backward += back * gathers[i];
        if (is_of_layer(kind)) {
          unit_gather += gathers[i];
          unit_gather_back += std::floor(back) * gathers[i];
        }
        if (plan.parameter_offload)
          copies += (1 + back) * seconds(CopyWork{Bytes(layout.sizes[layout.buckets[i].size].slice *
                                                        fetched_bytes(job.training, rules)),
                                                  CopyDirection::host_to_device});
      }
      fetched = forward + backward;
      // The first unit is fetched once everything is updated.
      t.start = std::max({t.start, host_back, plan.overlap_param_gather ? update + gathers.back() : 0.0});
      const bool in_turn = plan.overlap_param_gather && layout.shards > 1 && plan.pp == 1;
      for (double* of_one : {&unit_gather, &unit_gather_back}) *of_one = in_turn ? *of_one / layers : 0;
      // Units fetched ahead may be gathered in an earlier slot than the one that reads them, the first of them before
      // anything arrives; on a lane of their own, beside what follows the last reader of the unit before.
      if (unit_ring_count > 1 || plan.overlap_param_gather)
        t.lane_total = std::max(t.lane_total, microbatches * fetched);
      if (unit_ring_count > 1 && !plan.overlap_param_gather) {
        t.on_compute += std::max(0.0, microbatches * fetched - static_cast<double>(unit_ring_count) *
                                                                   *std::ranges::max_element(gathers));
      } else if (!plan.overlap_param_gather) {
        t.per_forward += forward;
        t.per_backward += backward;
      }
      t.lane_total = std::max(t.lane_total, microbatches * copies);
    }

    // Reductions of the last micro-batch, or of each.
    double every = 0, in_ring = 0, unit_reduce = 0, largest_reduce = 0, held = 0;
    const bool shared =
        job.model.tied_embeddings && plan.pp * plan.vp == 1;  // an embedding has a place of its own
    // A tied head on a stage of its own is reduced behind the exchange: what goes to the host is in another order.
    const bool head_last = job.model.tied_embeddings && plan.pp > 1 && stage == plan.pp - 1;
    const bool exchanges = job.model.tied_embeddings && plan.pp > 1;
    int point = -1;  // of the last reduction
    reductions.clear();
    copied.clear();
    if (ring_gradients && !waits) t.rings.resize(static_cast<std::size_t>(plan.vp));
    for (const BucketView& bucket : layout.buckets) {
      const SizeTimes& of = by_size[bucket.size];
      const double each = of.reduce, once = of.norm;
      every += each;
      const StateTimes::Reduction& own = layout.points[bucket.point];
      if (ring_gradients || waits) {
        held += of.gradient_copy + of.host_sum + (beside ? each : 0.0);
        const bool through_ring = !shared || bucket.first != ParameterKind::embedding;
        if (through_ring) {
          in_ring += each;
          largest_reduce = std::max(largest_reduce, each);
        }
        if (is_of_layer(bucket.first)) unit_reduce += each / std::max(1, layers);
        if (!t.rings.empty() && through_ring) {
          StateTimes::Ring& ring = t.rings[bucket.last_chunk];
          if (ring.all == 0) ring.first = own;
          ring.but_two = ring.all > 0 ? ring.but_one : -INFINITY;
          ring.but_one = ring.all;
          ring.all += each;
        }
      }
      const bool tied =
          exchanges && (bucket.first == ParameterKind::embedding || bucket.first == ParameterKind::head);
      if (!beside) {
        t.on_compute += once;
        if (bucket.last_chunk == 0) t.on_compute_last += once + (ring_gradients ? 0.0 : each);
        // The copies of a tied embedding are reduced behind their exchange, not in the last slot.
        if (tied) {
          t.on_compute += exchange;
          t.on_compute_last += exchange;
        }
        if (ring_gradients)
          t.per_backward += tied ? 0.0 : each;
        else
          t.on_compute += each;
        if (host_all == 0) continue;
      }
      // With a split backward the embedding is done before the weights of layers.
      if (split_backward && own.embedding) continue;
      // What is ready at the same time is reduced in one go.
      if (bucket.point != point) {
        point = bucket.point;
        reductions.push_back(own);
        copied.push_back({});
      }
      // The first stage's copy is ready last; the other one is there by then.
      const double exchanged = tied && bucket.first == ParameterKind::embedding ? exchange : 0.0;
      reductions.back().seconds += each + once + exchanged;
      if (!head_last) {
        copied.back().all += of.gradient_copy;
        copied.back().last = of.gradient_copy;
      }
      if (!beside) continue;
      t.last_beside = each + once + exchanged;
      t.beside_total += each + once + exchanged;
    }
    t.reductions.assign(reductions.begin(), reductions.end());
    if (host_all > 0) t.copied.assign(copied.begin(), copied.end());
    if (beside && ring_gradients) t.lane_total = std::max(t.lane_total, microbatches * every);
    // Layer by layer, a unit's reduction and the fetch of the unit after the next wait for its backward and, on a lane
    // that they share, for one another; gradients of a third bucket wait for the first one's place in the ring.
    if (plan.pp == 1) {
      const int n_layers = job.model.n_layers - 1 - static_cast<int>(unit_ring_count);
      const bool together = beside && ring_gradients && unit_gather > 0;
      t.forward_floor = n_layers * unit_gather;
      t.backward_floor = n_layers * (unit_gather_back + (together ? unit_reduce : 0.0));
      if (beside && ring_gradients)
        t.backward_floor = std::max(t.backward_floor, in_ring - 2 * largest_reduce);
      if (waits) t.backward_floor = 0;  // its parts are in what is held up
    }
    if (waits) {
      t.held = (microbatches - 1) * held;
      t.on_compute += t.held;
    }
    // Overlapped fetches run on the reductions' lane when those are overlapped as well.
    const bool fetched_beside = ring_parameters && plan.overlap_param_gather && layout.shards > 1;
    const double reduced = (ring_gradients ? microbatches : 1) * every;
    if (fetched_beside && beside) t.lane_total = std::max(t.lane_total, microbatches * fetched + reduced);
    if (fetched_beside) t.collectives += microbatches * fetched;
    if (gather && plan.overlap_param_gather)
      t.collectives += std::accumulate(gathers.begin(), gathers.end(), 0.0);
    if (beside) t.collectives += std::max(0.0, (waits ? every : reduced) - t.last_beside);
    t.collective_lanes = (fetched_beside && plan.overlap_grad_reduce ? 0 : (t.collectives > 0 ? 1 : 0)) + 1;
    out.add(std::move(t));
  }
  return out;
}

}  // namespace sextant
