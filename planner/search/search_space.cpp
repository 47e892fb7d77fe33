#include "planner/search/search_space.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace sextant {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
// An index of a choice has eight bits.
constexpr std::size_t kMostMicroBatches = 128;
constexpr int kMostFineLayers = 256;

std::vector<int> divisors(int n, int most) {
  std::vector<int> out;
  for (int d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) out.push_back(d);
  return out;
}

// 1, 2, 3, 4, 6, 8, 12, 16, ... below n: close enough together that the best count is never far.
std::vector<int> ladder(int n) {
  std::vector<int> out;
  for (int power = 1; power < n; power *= 2) {
    out.push_back(power);
    if (power > 1 && power + power / 2 < n) out.push_back(power + power / 2);
  }
  return out;
}

// 1 to 8, then by eighths of the power of two below: 9, ..., 16, 18, 20, ..., 32, 36, ... below n.
std::vector<int> fine_ladder(int n) {
  std::vector<int> out;
  for (int power = 1; power < n; power *= 2)
    for (int i = power; i < std::min(2 * power, n); i += std::max(1, power / 8)) out.push_back(i);
  return out;
}

// Removes later copies; the order stays.
template <class T>
void unique(std::vector<T>& list) {
  std::vector<T> seen;
  for (const T& x : list)
    if (std::find(seen.begin(), seen.end(), x) == seen.end()) seen.push_back(x);
  list = std::move(seen);
}

template <class T, class F>
void keep(std::vector<T>& list, const PlanLimits& limits, PlanField field, F value) {
  std::erase_if(list, [&](const T& x) { return !limits.admits(field, static_cast<double>(value(x))); });
}
template <class T>
void keep(std::vector<T>& list, const PlanLimits& limits, PlanField field) {
  keep(list, limits, field, [](const T& x) { return x; });
}

}  // namespace

std::uint64_t SearchSpace::size() const {
  std::uint64_t product = 1;
  for (const std::size_t n :
       {tp.size(), cp.size(), pp.size(), axis_order.size(), micro_batch.size(), sequence_parallel.size(),
        overlap_tp.size(), recompute.size(), form.size(), split.size(), zero_stage.size(),
        shard_degree.size(), optimizer_offload.size(), parameter_offload.size(), activation_offload.size(),
        bucket_elements.size(), last_bucket_split.size(), overlap_grad_reduce.size(),
        overlap_param_gather.size()}) {
    if (n == 0) return 0;
    product = product > kMost / n ? kMost : product * n;
  }
  return product;
}

int SearchSpace::horizon_of_nothing() const {
  int least = 0;
  for (const ActivationOffload& a : activation_offload) {
    if (a == ActivationOffload{}) return a.horizon;
    if (a.layers == 0 && (least == 0 || a.horizon < least)) least = a.horizon;
  }
  return least;
}

bool SearchSpace::idle_horizon(const ParallelPlan& p) const {
  return p.offload_horizon != ActivationOffload{}.horizon && p.activation_offload == 0 &&
         !p.parameter_offload && p.offload_horizon != horizon_of_nothing();
}

std::string SearchSpace::describe() const {
  return fmt::format(
      "{:.3g} layouts: tp {} x cp {} x pp {} x axis orders {} x mbs {} x SP {} x TP overlap {} x recompute "
      "{} x schedules "
      "and vp {} x stage splits {} x ZeRO {} x shard degrees {} x optimizer offload {} x parameter offload "
      "{} x activation "
      "offload {} x buckets {} x last-bucket splits {} x reduction overlap {} x gather overlap {}",
      static_cast<double>(size()), tp.size(), cp.size(), pp.size(), axis_order.size(), micro_batch.size(),
      sequence_parallel.size(), overlap_tp.size(), recompute.size(), form.size(), split.size(),
      zero_stage.size(), shard_degree.size(), optimizer_offload.size(), parameter_offload.size(),
      activation_offload.size(), bucket_elements.size(), last_bucket_split.size(), overlap_grad_reduce.size(),
      overlap_param_gather.size());
}

int most_chunks(const SearchSpace& s, UnevenStages able, int n_layers) {
  return s.limits.pins(PlanField::vp) ? most_chunks(able, n_layers) : n_layers;
}

std::vector<Choice> neighbours(const SearchSpace& s, const Choice& c) {
  std::vector<Choice> out;
  const auto change = [&](std::uint8_t Choice::*field, std::size_t values) {
    for (std::size_t i = 0; i < values; ++i) {
      if (i == c.*field) continue;
      out.push_back(c);
      out.back().*field = static_cast<std::uint8_t>(i);
    }
  };
  // Fewer replicas have time for larger micro-batches.
  for (std::size_t mbs = 0; mbs < s.micro_batch.size(); ++mbs) {
    const std::size_t from = out.size();
    change(&Choice::tp, s.tp.size());
    change(&Choice::cp, s.cp.size());
    change(&Choice::pp, s.pp.size());
    for (std::size_t i = from; i < out.size(); ++i) out[i].micro_batch = small(mbs);
  }
  change(&Choice::axis_order, s.axis_order.size());
  change(&Choice::micro_batch, s.micro_batch.size());
  change(&Choice::sequence_parallel, s.sequence_parallel.size());
  change(&Choice::overlap_tp, s.overlap_tp.size());
  change(&Choice::recompute, s.recompute.size());
  change(&Choice::form, s.form.size());
  change(&Choice::split, s.split.size());
  change(&Choice::zero_stage, s.zero_stage.size());
  change(&Choice::shard_degree, s.shard_degree.size());
  change(&Choice::optimizer_offload, s.optimizer_offload.size());
  change(&Choice::parameter_offload, s.parameter_offload.size());
  // Some stacks leave parameters and optimizer state on the host together or not at all.
  for (std::size_t oo = 0; oo < s.optimizer_offload.size(); ++oo)
    for (std::size_t po = 0; po < s.parameter_offload.size(); ++po) {
      if (oo == c.optimizer_offload || po == c.parameter_offload) continue;
      out.push_back(c);
      out.back().optimizer_offload = static_cast<std::uint8_t>(oo);
      out.back().parameter_offload = static_cast<std::uint8_t>(po);
    }
  change(&Choice::activation_offload, s.activation_offload.size());
  change(&Choice::bucket_elements, s.bucket_elements.size());
  change(&Choice::last_bucket_split, s.last_bucket_split.size());
  change(&Choice::overlap_grad_reduce, s.overlap_grad_reduce.size());
  change(&Choice::overlap_param_gather, s.overlap_param_gather.size());
  return out;
}

ParallelPlan plan_of(const SearchSpace& s, const Choice& c) {
  ParallelPlan p;
  p.tp = s.tp[c.tp];
  p.cp = s.cp[c.cp];
  p.pp = s.pp[c.pp];
  p.dp = std::max(1, s.world / (p.tp * p.cp * p.pp));
  p.axis_order = s.axis_order[c.axis_order];
  p.micro_batch = s.micro_batch[c.micro_batch];
  p.sequence_parallel = s.sequence_parallel[c.sequence_parallel] != 0;
  p.overlap_tp = s.overlap_tp[c.overlap_tp] != 0;
  p.recompute = s.recompute[c.recompute];
  p.schedule = s.form[c.form].schedule;
  p.vp = s.form[c.form].vp;
  p.zero_stage = s.zero_stage[c.zero_stage];
  p.shard_degree = s.shard_degree[c.shard_degree];
  p.optimizer_offload = s.optimizer_offload[c.optimizer_offload];
  p.parameter_offload = s.parameter_offload[c.parameter_offload] != 0;
  const int longest = (s.n_layers + p.pp * p.vp - 1) / (p.pp * p.vp);
  p.activation_offload = s.activation_offload[c.activation_offload].of_chunk(longest);
  p.offload_horizon = s.activation_offload[c.activation_offload].horizon;
  p.bucket_elements = s.bucket_elements[c.bucket_elements];
  p.last_bucket_split = s.last_bucket_split[c.last_bucket_split];
  p.overlap_grad_reduce = s.overlap_grad_reduce[c.overlap_grad_reduce] != 0;
  p.overlap_param_gather = s.overlap_param_gather[c.overlap_param_gather] != 0;
  return p;
}

namespace {

// Whether the state of the model presses on the memory of all devices together, however it is sharded.
bool is_tight(const ModelSpec& model, const TrainingSpec& training, const DeviceSpec& device, int world) {
  constexpr double kTight = 0.25;
  const int master = training.parameter == Dtype::fp32 ? 0 : size_bytes(Dtype::fp32);
  const int bytes = size_bytes(training.parameter) + size_bytes(training.gradient) + master +
                    2 * size_bytes(training.optimizer_state);
  return static_cast<double>(parameter_counts(model).total) * bytes >=
         kTight * static_cast<double>(device.memory.v) * world;
}

// Those layers of each chunk on the host, fetched back so far ahead as may matter.
void offload_layers(SearchSpace& s, int layers) {
  for (int horizon = 1; horizon <= std::clamp(std::min(layers, s.n_layers) - 1, 1, 4); ++horizon)
    s.activation_offload.push_back({layers, horizon});
}

void list_axis_orders(SearchSpace& s) {
  AxisOrder order = ParallelPlan{}.axis_order;
  std::sort(order.begin(), order.end());
  do s.axis_order.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  // The usual order first: of equal placements the first one stands for all.
  std::stable_partition(s.axis_order.begin(), s.axis_order.end(),
                        [](const AxisOrder& o) { return o == ParallelPlan{}.axis_order; });
}

// What may be recomputed and how the pipeline is scheduled.
void list_passes(SearchSpace& s) {
  s.recompute = {{RecomputeKind::none, -1}, {RecomputeKind::selective, -1}, {RecomputeKind::full, -1}};
  for (const int k : ladder(s.n_layers)) s.recompute.push_back({RecomputeKind::full, k});
  s.form = {
      {PipelineSchedule::one_f_one_b, 1}, {PipelineSchedule::gpipe, 1}, {PipelineSchedule::zero_bubble, 1}};
  for (int vp = 2; vp <= std::min(s.n_layers / 2, 32); ++vp)
    s.form.push_back({PipelineSchedule::interleaved, vp});
  s.split = {StageSplit::even, StageSplit::balanced};
}

// What may rest on the host; `s.tight` is known.
void list_offloads(SearchSpace& s) {
  const int shares = s.tight ? 20 : 4;
  for (int i = 0; i <= shares; ++i) s.optimizer_offload.push_back(static_cast<double>(i) / shares);
  s.parameter_offload = {0, 1};
  for (const int horizon : ladder(s.n_layers)) s.activation_offload.push_back({0, horizon});
  if (s.activation_offload.empty()) s.activation_offload.push_back({0, 1});
  const bool fine = s.n_layers <= kMostFineLayers;
  for (const int n : fine ? fine_ladder(s.n_layers) : ladder(s.n_layers)) offload_layers(s, n);
  offload_layers(s, ActivationOffload::all);
}

// A value that the user pins is looked at even when no list has it; of what saves memory, the last that a limit leaves.
void add_limited_value(SearchSpace& s, const PlanLimit& limit) {
  const double edge =
      limit.value + (limit.relation == Relation::greater) - (limit.relation == Relation::less);
  const auto whole = static_cast<int>(edge);
  const bool pinned = limit.relation == Relation::equal;
  const bool some = whole > 0 && whole < s.n_layers + pinned;
  if (limit.relation != Relation::not_equal) {
    if (limit.field == PlanField::optimizer_offload && edge >= 0 && edge <= 100)
      s.optimizer_offload.push_back(edge / 100);
    if (limit.field == PlanField::activation_offload && some) offload_layers(s, whole);
    if (limit.field == PlanField::recompute_layers && some)
      s.recompute.push_back({RecomputeKind::full, whole});
  }
  if (!pinned) return;
  if (limit.field == PlanField::micro_batch) s.micro_batch.push_back(whole);
  if (limit.field == PlanField::shard_degree) s.shard_degree.push_back(whole);
  if (limit.field == PlanField::vp && whole > 1 && whole <= s.n_layers)
    s.form.push_back({PipelineSchedule::interleaved, whole});
  if (limit.field == PlanField::bucket_elements)
    s.bucket_elements.push_back(static_cast<std::int64_t>(limit.value));
  if (limit.field == PlanField::last_bucket_split) s.last_bucket_split.push_back(whole);
  if (limit.field == PlanField::tp) s.tp.push_back(whole);
  if (limit.field == PlanField::cp) s.cp.push_back(whole);
  if (limit.field == PlanField::pp) s.pp.push_back(whole);
}

// Those of every limit, each value once.
void add_limited_values(SearchSpace& s) {
  for (const PlanLimit& limit : s.limits.limits) add_limited_value(s, limit);
  for (const PlanLimit& limit : s.limits.limits) {
    if (limit.field != PlanField::offload_horizon || limit.relation != Relation::equal) continue;
    const std::vector<ActivationOffload> known = s.activation_offload;
    for (const ActivationOffload& a : known)
      s.activation_offload.push_back({a.layers, static_cast<int>(limit.value)});
  }
  unique(s.tp);
  unique(s.cp);
  unique(s.pp);
  unique(s.micro_batch);
  unique(s.shard_degree);
  unique(s.optimizer_offload);
  unique(s.form);
  unique(s.activation_offload);
  unique(s.bucket_elements);
  unique(s.last_bucket_split);
  unique(s.recompute);
}

// Whether the limits leave so many layers on the host; of all of a chunk, whichever number that is.
bool admits_offload(const PlanLimits& limits, const ActivationOffload& a, int n_layers) {
  const PlanField field = PlanField::activation_offload;
  if (a.layers != ActivationOffload::all) return limits.admits(field, a.layers);
  for (int n = 1; n <= n_layers; ++n)  // each chunk says which it is
    if (limits.admits(field, n)) return !limits.pins(field);
  return false;
}

void keep_admitted(SearchSpace& s) {
  const PlanLimits& limits = s.limits;
  keep(s.tp, limits, PlanField::tp);
  keep(s.cp, limits, PlanField::cp);
  keep(s.pp, limits, PlanField::pp);
  keep(s.micro_batch, limits, PlanField::micro_batch);
  keep(s.sequence_parallel, limits, PlanField::sequence_parallel);
  keep(s.overlap_tp, limits, PlanField::overlap_tp);
  keep(s.recompute, limits, PlanField::recompute,
       [](const Recompute& r) { return static_cast<int>(r.kind); });
  keep(s.form, limits, PlanField::schedule,
       [](const PipelineForm& f) { return static_cast<int>(f.schedule); });
  keep(s.form, limits, PlanField::vp, [](const PipelineForm& f) { return f.vp; });
  keep(s.zero_stage, limits, PlanField::zero_stage);
  keep(s.optimizer_offload, limits, PlanField::optimizer_offload, [](double share) {
    ParallelPlan p;
    p.optimizer_offload = share;
    return field_value(p, PlanField::optimizer_offload);
  });
  keep(s.parameter_offload, limits, PlanField::parameter_offload);
  std::erase_if(s.activation_offload,
                [&](const ActivationOffload& a) { return !admits_offload(limits, a, s.n_layers); });
  keep(s.overlap_grad_reduce, limits, PlanField::overlap_grad_reduce);
  keep(s.overlap_param_gather, limits, PlanField::overlap_param_gather);
  keep(s.bucket_elements, limits, PlanField::bucket_elements);
  keep(s.last_bucket_split, limits, PlanField::last_bucket_split);
  keep(s.activation_offload, limits, PlanField::offload_horizon,
       [](const ActivationOffload& a) { return a.horizon; });
  keep(s.recompute, limits, PlanField::recompute_layers, [](const Recompute& r) {
    ParallelPlan p;
    p.recompute = r;
    return field_value(p, PlanField::recompute_layers);
  });
  keep(s.axis_order, limits, PlanField::axis_order, axis_order_index);
  keep(s.split, limits, PlanField::stage_split, [](StageSplit split) { return static_cast<int>(split); });
}

}  // namespace

SearchSpace default_space(const ModelSpec& model, const TrainingSpec& training, const DeviceSpec& device,
                          int world, const PlanLimits& limits) {
  SearchSpace s;
  s.world = world;
  s.n_layers = model.n_layers;
  s.limits = limits;
  s.tp = divisors(world, std::min(model.n_heads, 256));
  s.cp = divisors(world, 64);
  s.pp = divisors(world, std::min(model.n_layers, 128));
  list_axis_orders(s);
  s.micro_batch = divisors(training.global_batch, training.global_batch);
  if (s.micro_batch.size() > kMostMicroBatches) s.micro_batch.resize(kMostMicroBatches);
  s.sequence_parallel = {0, 1};
  s.overlap_tp = {0, 1};
  list_passes(s);
  s.zero_stage = {0, 1, 2, 3};
  s.shard_degree = {0};
  for (const int d : divisors(world, 1024)) s.shard_degree.push_back(d);
  s.tight = is_tight(model, training, device, world);
  list_offloads(s);
  s.bucket_elements = {0, 25'000'000, 100'000'000, 400'000'000};
  s.last_bucket_split = {1, 4};
  s.overlap_grad_reduce = {1, 0};
  s.overlap_param_gather = {1, 0};
  add_limited_values(s);
  keep_admitted(s);
  return s;
}

}  // namespace sextant
