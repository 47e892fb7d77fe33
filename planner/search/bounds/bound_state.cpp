// What parameters, gradients and optimizer state add to the bounds of a stage.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "core/graph/parameter_layout.hpp"
#include "planner/search/bounds/plan_state.hpp"

namespace sextant {
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

// One stage in the order of a step: update, gathers or fetches of parameters, reductions of gradients.
// Mirrors planner/lowering/update.cpp, reduce.cpp and units.cpp.
class StageStateTimes {
 public:
  StageStateTimes(const PlanState& of, const StageBuckets& layout, const StageLinks& links, int stage,
                  StateScratch& scratch, StateTimes& out)
      : of_(of),
        plan_(of.plan),
        layout_(layout),
        links_(links),
        stage_(stage),
        scratch_(scratch),
        gathers_(layout.shards > 1 && !of.ring_parameters),
        pipelined_(gathers_ && of.rules.pipelined_update && of.plan.overlap_param_gather),
        times_(out) {}
  // Adds all of it to what the caller holds, which is new.
  void add_up();

 private:
  void price(const BucketSize&, SizeTimes& out) const;
  double reduction_of(const BucketSize&) const;
  void update_buckets();
  void update_at_once();
  void begin_compute();
  void parameters_ready();
  void gather_every_microbatch();
  void fetch_units();
  void gather_units(double forward, double backward, double copies);
  void reduce_gradients();
  void reduce_in_every_microbatch(const BucketView&, const SizeTimes&);
  void reduce_on_compute(const BucketView&, const SizeTimes&, bool tied);
  void reduce_behind_backward(const BucketView&, const SizeTimes&, double tied_reduction);
  void single_stage_floors();
  void count_collectives();
  double all_gathers() const {
    return std::accumulate(scratch_.gathers.begin(), scratch_.gathers.end(), 0.0);
  }

  const PlanState& of_;
  const ParallelPlan& plan_;
  const StageBuckets& layout_;
  const StageLinks& links_;
  const int stage_;
  StateScratch& scratch_;
  const bool gathers_;    // parameters, once in a step
  const bool pipelined_;  // update and gather, bucket by bucket
  StateTimes& times_;

  std::int64_t on_device_ = 0, on_host_ = 0;       // elements updated there
  double update_ = 0;                              // the device's is done
  double host_back_ = 0;                           // parameters updated on the host are here
  double lane_ = 0;                                // the last gather is done
  double fetched_ = 0;                             // units, in one micro-batch
  double unit_gather_ = 0, unit_gather_back_ = 0;  // of one layer, in its passes
  // Reductions of one micro-batch: all; those through the ring; of one layer; the longest through the ring; what it waits for.
  double every_ = 0, in_ring_ = 0, unit_reduce_ = 0, largest_reduce_ = 0, held_ = 0;
  int point_ = -1;  // of the last reduction
};

void StageStateTimes::add_up() {
  scratch_.by_size.clear();
  for (const BucketSize& size : layout_.sizes) price(size, scratch_.by_size.emplace_back());
  update_buckets();
  if (!pipelined_) update_at_once();
  begin_compute();
  if (gathers_ && plan_.overlap_param_gather) parameters_ready();
  if (gathers_every_microbatch(plan_, of_.rules)) gather_every_microbatch();
  if (of_.ring_parameters) fetch_units();
  reduce_gradients();
  if (plan_.pp == 1) single_stage_floors();
  if (of_.waits) {
    times_.held = (of_.microbatches - 1) * held_;
    times_.on_compute += times_.held;
  }
  count_collectives();
}

void StageStateTimes::price(const BucketSize& size, SizeTimes& t) const {
  const TrainingSpec& training = of_.job.training;
  t.on_host = of_.most_on_host ? 0 : host_share(plan_.optimizer_offload, size.slice);
  const std::int64_t device =
      size.slice - (of_.most_on_host ? host_share(*of_.most_on_host, size.slice) : t.on_host);
  if (layout_.shards > 1)
    t.gather = of_.seconds(CollectiveWork{CollectiveKind::all_gather,
                                          Bytes(size.elements * size_bytes(training.parameter)), links_.shard,
                                          false});
  if (pipelined_ && device > 0) t.update = of_.state_work(StateKind::update, device);
  if (pipelined_) {
    t.host_update = of_.updated_on_host(t.on_host);
    t.host_copy = of_.copied_back(t.on_host);
  }
  if (t.on_host > 0)
    t.gradient_copy = of_.seconds(
        CopyWork{Bytes(t.on_host * size_bytes(training.gradient)), CopyDirection::device_to_host});
  t.reduce = reduction_of(size);
  if (of_.rules.clip_gradients && !of_.host_sums) t.norm = of_.state_work(StateKind::norm, size.slice);
  if (of_.waits) t.host_sum = of_.state_work_on_host(StateKind::accumulate, size.slice);
}

double StageStateTimes::reduction_of(const BucketSize& size) const {
  const TrainingSpec& training = of_.job.training;
  double sum = 0;
  if (of_.sums_norms && size.norms > 0) sum += of_.all_reduce(size.norms, training.gradient, links_.tp);
  if (plan_.replicas() > 1)
    sum += of_.seconds(
        CollectiveWork{layout_.shards > 1 ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
                       Bytes(size.elements * size_bytes(training.reduction)), links_.shard});
  if (links_.replica.size > 1 && layout_.shards > 1)
    sum += of_.all_reduce(size.slice, training.reduction, links_.replica);
  if (of_.ring_gradients && !of_.host_sums) sum += of_.state_work(StateKind::accumulate, size.slice);
  return sum;
}

void StageStateTimes::update_buckets() {
  auto& [by_size, gathers, gathered, reductions, copied] = scratch_;
  gathers.assign(layout_.buckets.size(), 0.0);
  gathered.assign(layout_.buckets.size(), 0.0);
  double host_update = 0, host_copy = 0;
  for (std::size_t i = layout_.buckets.size(); i-- > 0;) {
    const std::size_t size = layout_.buckets[i].size;
    SizeTimes& t = by_size[size];
    ++t.count;
    on_device_ += layout_.sizes[size].slice - t.on_host;
    on_host_ += t.on_host;
    gathers[i] = t.gather;
    if (!pipelined_) continue;
    update_ += t.update;
    host_update += t.host_update;
    host_copy = std::max(host_copy, host_update) + t.host_copy;
    lane_ = std::max({lane_, update_, host_copy}) + t.gather;
    gathered[i] = lane_;
  }
}

void StageStateTimes::update_at_once() {
  std::tie(update_, host_back_) = of_.updated_at_once(on_device_, on_host_);
  if (!of_.most_on_host) return;
  update_ = host_back_ = INFINITY;
  for (const double share : of_.any_share) {
    std::int64_t away = 0;
    for (std::size_t size = 0; size < layout_.sizes.size(); ++size)
      away += scratch_.by_size[size].count * host_share(share, layout_.sizes[size].slice);
    const auto [here, back] = of_.updated_at_once(on_device_ - away, away);
    update_ = std::min(update_, here);
    host_back_ = std::min(host_back_, std::max(here, back));
  }
}

// When the compute lane is free, behind the update and what it waits for of gathers.
void StageStateTimes::begin_compute() {
  const std::vector<double>& gathers = scratch_.gathers;
  std::vector<double>& gathered = scratch_.gathered;
  double& start = times_.start;
  start = update_;
  if (gathers_ && !pipelined_) {
    if (plan_.overlap_param_gather) {
      lane_ = std::max(update_, host_back_);
      for (std::size_t i = gathers.size(); i-- > 0;) {
        lane_ += gathers[i];
        gathered[i] = lane_;
      }
    } else {
      start = std::max(update_, host_back_) + all_gathers();
    }
  }
  if (!gathers_ && !of_.ring_parameters) start = std::max(start, host_back_);
  if (gathers_ && plan_.overlap_param_gather && !of_.rules.param_gather_overlaps_forward)
    start = std::max(start, lane_);
  const std::int64_t cleared = layout_.padded - (of_.rules.gradients_begin_written ? layout_.elements : 0);
  if (!of_.ring_gradients && cleared > 0) start += of_.state_work(StateKind::zero, cleared);
  // The first operation of a stage reads the bucket that is gathered first.
  if (gathers_ && plan_.overlap_param_gather && !gathered.empty()) start = std::max(start, gathered.back());
}

void StageStateTimes::parameters_ready() {
  std::vector<StateTimes::Ready>& ready = times_.ready;
  ready.assign(static_cast<std::size_t>(plan_.vp), {});
  for (std::size_t i = 0; i < layout_.buckets.size(); ++i) {
    const BucketView& bucket = layout_.buckets[i];
    const double gathered = scratch_.gathered[i];
    for (std::size_t v = bucket.last_chunk; v <= bucket.first_chunk; ++v)
      if (gathered > ready[v].seconds)
        ready[v] = {gathered, v == bucket.last_chunk ? bucket.before : 0, bucket.last == ParameterKind::head};
  }
}

void StageStateTimes::gather_every_microbatch() {
  const double all = all_gathers();
  if (plan_.overlap_param_gather)
    times_.lane_total = std::max(times_.lane_total, of_.microbatches * all);
  else
    times_.on_compute += (of_.microbatches - 1) * all;
}

// Units fetched for every pass.
void StageStateTimes::fetch_units() {
  const std::vector<double>& gathers = scratch_.gathers;
  const int layers = layout_.layers;
  double forward = 0, backward = 0, copies = 0;
  const double repeated =
      layers > 0 ? static_cast<double>(repeated_modules(of_.job, plan_, stage_)) / layers : 0;
  for (std::size_t i = 0; i < layout_.buckets.size(); ++i) {
    const ParameterKind kind = layout_.buckets[i].first;
    // The embedding is not read in the backward pass, and what the repeated forward used last is still there.
    const double back = (kind == ParameterKind::embedding ? 0 : 1) +
                        (is_of_layer(kind) && kind != layout_.last_used ? repeated : 0.0);
    forward += gathers[i];
    backward += back * gathers[i];
    if (is_of_layer(kind)) {
      unit_gather_ += gathers[i];
      unit_gather_back_ += std::floor(back) * gathers[i];
    }
    if (plan_.parameter_offload)
      copies += (1 + back) * of_.seconds(CopyWork{Bytes(layout_.sizes[layout_.buckets[i].size].slice *
                                                        fetched_bytes(of_.job.training, of_.rules)),
                                                  CopyDirection::host_to_device});
  }
  // The first unit is fetched once everything is updated.
  times_.start =
      std::max({times_.start, host_back_, plan_.overlap_param_gather ? update_ + gathers.back() : 0.0});
  const bool in_turn = plan_.overlap_param_gather && layout_.shards > 1 && plan_.pp == 1;
  for (double* of_one : {&unit_gather_, &unit_gather_back_}) *of_one = in_turn ? *of_one / layers : 0;
  gather_units(forward, backward, copies);
}

// Units fetched ahead may be gathered in an earlier slot than the one that reads them, the first of them before
// anything arrives; on a lane of their own, beside what follows the last reader of the unit before.
void StageStateTimes::gather_units(double forward, double backward, double copies) {
  const bool ahead = of_.unit_ring_count > 1;
  fetched_ = forward + backward;
  if (ahead || plan_.overlap_param_gather)
    times_.lane_total = std::max(times_.lane_total, of_.microbatches * fetched_);
  if (ahead && !plan_.overlap_param_gather) {
    times_.on_compute +=
        std::max(0.0, of_.microbatches * fetched_ - static_cast<double>(of_.unit_ring_count) *
                                                        *std::ranges::max_element(scratch_.gathers));
  } else if (!plan_.overlap_param_gather) {
    times_.per_forward += forward;
    times_.per_backward += backward;
  }
  times_.lane_total = std::max(times_.lane_total, of_.microbatches * copies);
}

// Reductions of the last micro-batch, or of each.
void StageStateTimes::reduce_gradients() {
  auto& [by_size, gathers, gathered, reductions, copied] = scratch_;
  reductions.clear();
  copied.clear();
  if (of_.ring_gradients && !of_.waits) times_.rings.resize(static_cast<std::size_t>(plan_.vp));
  for (const BucketView& bucket : layout_.buckets) {
    const SizeTimes& t = by_size[bucket.size];
    every_ += t.reduce;
    if (of_.ring_gradients || of_.waits) reduce_in_every_microbatch(bucket, t);
    const bool tied =
        of_.reduces_tied && (bucket.first == ParameterKind::embedding || bucket.first == ParameterKind::head);
    if (!of_.overlaps) {
      reduce_on_compute(bucket, t, tied);
      if (on_host_ == 0) continue;
    }
    // With a split backward the embedding is done before the weights of layers.
    if (of_.split_backward && layout_.points[bucket.point].embedding) continue;
    // The first stage's copy is ready last; the other one is there by then.
    reduce_behind_backward(bucket, t,
                           tied && bucket.first == ParameterKind::embedding ? of_.tied_reduction : 0.0);
  }
  times_.reductions.assign(reductions.begin(), reductions.end());
  if (on_host_ > 0) times_.copied.assign(copied.begin(), copied.end());
  if (of_.overlaps && of_.ring_gradients)
    times_.lane_total = std::max(times_.lane_total, of_.microbatches * every_);
}

void StageStateTimes::reduce_in_every_microbatch(const BucketView& bucket, const SizeTimes& t) {
  const bool shared =
      of_.job.model.tied_embeddings && plan_.pp * plan_.vp == 1;  // an embedding has a place of its own
  const double each = t.reduce;
  held_ += t.gradient_copy + t.host_sum + (of_.overlaps ? each : 0.0);
  const bool through_ring = !shared || bucket.first != ParameterKind::embedding;
  if (through_ring) {
    in_ring_ += each;
    largest_reduce_ = std::max(largest_reduce_, each);
  }
  if (is_of_layer(bucket.first)) unit_reduce_ += each / std::max(1, layout_.layers);
  if (times_.rings.empty() || !through_ring) return;
  StateTimes::Ring& ring = times_.rings[bucket.last_chunk];
  if (ring.all == 0) ring.first = layout_.points[bucket.point];
  ring.but_two = ring.all > 0 ? ring.but_one : -INFINITY;
  ring.but_one = ring.all;
  ring.all += each;
}

void StageStateTimes::reduce_on_compute(const BucketView& bucket, const SizeTimes& t, bool tied) {
  times_.on_compute += t.norm;
  if (bucket.last_chunk == 0) times_.on_compute_last += t.norm + (of_.ring_gradients ? 0.0 : t.reduce);
  // The copies of a tied embedding are reduced behind their exchange, not in the last slot.
  if (tied) {
    times_.on_compute += of_.tied_reduction;
    times_.on_compute_last += of_.tied_reduction;
  }
  if (of_.ring_gradients)
    times_.per_backward += tied ? 0.0 : t.reduce;
  else
    times_.on_compute += t.reduce;
}

// What is ready at the same time is reduced in one go.
void StageStateTimes::reduce_behind_backward(const BucketView& bucket, const SizeTimes& t,
                                             double tied_reduction) {
  auto& [by_size, gathers, gathered, reductions, copied] = scratch_;
  // A tied head on a stage of its own is reduced behind the exchange: what goes to the host is in another order.
  const bool head_last = of_.reduces_tied && stage_ == plan_.pp - 1;
  if (bucket.point != point_) {
    point_ = bucket.point;
    reductions.push_back(layout_.points[bucket.point]);
    copied.push_back({});
  }
  const double seconds = t.reduce + t.norm + tied_reduction;
  reductions.back().seconds += seconds;
  if (!head_last) {
    copied.back().all += t.gradient_copy;
    copied.back().last = t.gradient_copy;
  }
  if (!of_.overlaps) return;
  times_.last_overlapped = seconds;
  times_.overlapped_total += seconds;
}

// Layer by layer, a unit's reduction and the fetch of the unit after the next wait for its backward and, on a lane
// that they share, for one another; gradients of a third bucket wait for the first one's place in the ring.
void StageStateTimes::single_stage_floors() {
  const int layers = of_.job.model.n_layers - 1 - static_cast<int>(of_.unit_ring_count);
  const bool together = of_.overlaps && of_.ring_gradients && unit_gather_ > 0;
  times_.forward_floor = layers * unit_gather_;
  times_.backward_floor = layers * (unit_gather_back_ + (together ? unit_reduce_ : 0.0));
  if (of_.overlaps && of_.ring_gradients)
    times_.backward_floor = std::max(times_.backward_floor, in_ring_ - 2 * largest_reduce_);
  if (of_.waits) times_.backward_floor = 0;  // its parts are in what is held up
}

// Overlapped fetches run on the reductions' lane when those are overlapped as well.
void StageStateTimes::count_collectives() {
  const bool fetch_overlaps = of_.ring_parameters && plan_.overlap_param_gather && layout_.shards > 1;
  const double reduced = (of_.ring_gradients ? of_.microbatches : 1) * every_;
  double& collectives = times_.collectives;
  if (fetch_overlaps && of_.overlaps)
    times_.lane_total = std::max(times_.lane_total, of_.microbatches * fetched_ + reduced);
  if (fetch_overlaps) collectives += of_.microbatches * fetched_;
  if (gathers_ && plan_.overlap_param_gather) collectives += all_gathers();
  if (of_.overlaps) collectives += std::max(0.0, (of_.waits ? every_ : reduced) - times_.last_overlapped);
  times_.collective_lanes =
      (fetch_overlaps && overlaps_grad_reduce(plan_, of_.rules) ? 0 : (collectives > 0 ? 1 : 0)) + 1;
}

}  // namespace

StageStates state_times(const Job& job, const ParallelPlan& plan, const PlanLinks& links,
                        const std::vector<StageBuckets>& by_stage, StateScratch& scratch,
                        std::span<const double> any_share) {
  const PlanState of_all(job, plan, links, any_share);
  StageStates out;
  out.reserve(by_stage.size());
  for (int stage = 0; stage < plan.pp; ++stage) {
    const StageBuckets& layout = by_stage[static_cast<std::size_t>(stage)];
    if (stage > 0 && links.index(stage) == links.index(stage - 1) &&
        layout == by_stage[static_cast<std::size_t>(stage - 1)]) {
      out.repeat();
      continue;
    }
    StateTimes times;
    StageStateTimes(of_all, layout, links.of(stage), stage, scratch, times).add_up();
    out.add(std::move(times));
  }
  return out;
}

}  // namespace sextant
