// Floors of memory for parts of the space: what every member below a node holds at least. Each is compared with the
// limit before anything below is formed; tests/planner/search/search_test.cpp compares the outcomes with brute force.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/graph/parameter_layout.hpp"
#include "cost_models/memory.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/simulation/slot_memory.hpp"
#include "planner/simulation/stage_memory.hpp"

namespace sextant {
namespace {

constexpr int kAll = std::numeric_limits<int>::max();

// Layers of a chunk that are recomputed as a whole, at most.
int again_of(const Recompute& r) {
  if (r.kind != RecomputeKind::full) return 0;
  return r.layers < 0 ? kAll : r.layers;
}

// Micro-batches may be undecided: the least that any number of them takes.
StateBytes least_state(const Job& job, ParallelPlan plan) {
  if (job.stack.memory.gradients_in_parameters)
    plan.micro_batch = std::max(1, job.training.global_batch / std::max(1, plan.dp));
  return state_bytes(job.training, plan, job.stack);
}

}  // namespace

// Parameters, gradients and optimizer state of one element.
double SearchTree::state_of_element(const ParallelPlan& plan) const {
  const StackRules& rules = job_.stack.rules;
  const StateBytes bytes = least_state(job_, plan);
  const int z = plan.zero_stage;
  const double shards = plan.shards();
  const bool split_parameters = z >= 3 && rules.zero3_regather_in_backward;
  const bool split_gradients = reduces_every_microbatch(z, plan.pp, rules);
  return (plan.parameter_offload ? 0.0 : bytes.parameter / (split_parameters ? shards : 1)) +
         (sums_gradients_on_host(plan, rules) ? 0.0 : bytes.gradient / (split_gradients ? shards : 1)) +
         bytes.optimizer * (1 - plan.optimizer_offload) / shards;
}

// The same with as much offload as stack, space and host memory allow.
double SearchTree::lowest_memory_offload(ParallelPlan plan) const {
  const StackCapabilities& can = job_.stack.can;
  const auto offered = [&](int from) { return plan.replicas() == 1 || plan.zero_stage >= from; };
  const bool any =
      (plan.pp == 1 || can.offload_with_pp) && (plan.replicas() > 1 || can.offload_of_one_replica);
  const bool parameters_may = any && may_offload_parameters_ && offered(can.parameter_offload_from_zero);
  const bool optimizer_may = any && offered(can.optimizer_offload_from_zero) &&
                             (plan.replicas() == 1 || plan.zero_stage <= can.optimizer_offload_to_zero);
  const double most = optimizer_may ? most_optimizer_offload_ : 0;
  plan.parameter_offload = parameters_may;
  plan.optimizer_offload = most;
  if (host_holds_state(plan)) return state_of_element(plan);
  const double unlimited = state_of_element(plan);
  double least = INFINITY;
  for (const std::uint8_t parameters : space_.parameter_offload)
    for (const double share : space_.optimizer_offload) {
      plan.parameter_offload = parameters != 0 && parameters_may;
      plan.optimizer_offload = std::min(share, most);
      if (host_holds_state(plan)) least = std::min(least, state_of_element(plan));
    }
  return std::isfinite(least) ? least : unlimited;
}

bool SearchTree::shards_one_alike(ParallelPlan plan) const {
  for (const double offloaded : {0.0, 1.0}) {
    plan.optimizer_offload = offloaded;
    plan.zero_stage = 0;
    const StateBytes without = state_bytes(job_.training, plan, job_.stack);
    plan.zero_stage = 1;
    if (without != state_bytes(job_.training, plan, job_.stack)) return false;
  }
  return true;
}

// Whether a node's host memory has room for the state that ranks of a mean stage leave there.
bool SearchTree::host_holds_state(const ParallelPlan& plan) const {
  const StateBytes bytes = least_state(job_, plan);
  const double elements = parameters_ / (static_cast<double>(plan.tp) * plan.pp * plan.shards());
  const double rank = job_.stack.memory.host_factor * elements *
                      ((plan.parameter_offload ? bytes.parameter : 0.0) +
                       plan.optimizer_offload * (bytes.host_optimizer + size_bytes(job_.training.gradient)) +
                       (1 - plan.optimizer_offload) * bytes.host_places);
  // A thousandth below, for roundings.
  return 0.999 * rank * std::min(job_.cluster.node.gpus, plan.world()) <=
         static_cast<double>(job_.cluster.node.host_memory.v);
}

// The same with the lowest-memory ZeRO stage as well.
double SearchTree::lowest_memory_state(ParallelPlan plan) const {
  const StackCapabilities& can = job_.stack.can;
  plan.shard_degree = 0;
  double least = INFINITY;
  for (const int z : space_.zero_stage) {
    if (std::find(can.zero_stages.begin(), can.zero_stages.end(), z) == can.zero_stages.end()) continue;
    if (plan.pp > 1 && z > can.max_zero_with_pp) continue;
    plan.zero_stage = z;
    least = std::min(least, lowest_memory_offload(plan));
  }
  return std::isfinite(least) ? least : 0;
}

// Bytes. A thousandth below, for roundings.
double SearchTree::needed(double floor_bytes) const {
  return 0.999 * floor_bytes * needed_per_byte(job_.stack.memory) +
         static_cast<double>(outside_of(job_.stack.memory, space_.world).v);
}

template <class What>
bool SearchTree::above_memory(double floor_bytes, const ParallelPlan& plan, std::uint64_t members,
                              const What& what, Expansion& out) const {
  if (within_memory(floor_bytes)) return false;
  reject(
      Outcome::out_of_memory, members, plan,
      [&] {
        const Bytes outside = outside_of(job_.stack.memory, space_.world);
        return fmt::format("needs at least {:.1f} GiB, has {:.1f} GiB ({})", needed(floor_bytes) / (1 << 30),
                           gib(memory_limit_),
                           outside > memory_limit_
                               ? fmt::format("{:.1f} GiB of them {} itself takes, whatever it trains",
                                             gib(outside), job_.stack.name)
                               : what());
      },
      out);
  return true;
}

// The heaviest stage holds at least the mean.
bool SearchTree::state_fits(const ParallelPlan& plan, double state_of_one, std::uint64_t members,
                            SearchCache& cache, Expansion& out) const {
  const double elements = static_cast<double>(cache.elements(plan.tp)) / plan.pp;
  return !above_memory(
      state_of_one * elements, plan, members,
      [] { return "parameters and optimizer state of an average stage"; }, out);
}

// When the first micro-batch has gone forward, every stage holds all that its layers keep of it.
bool SearchTree::micro_batch_fits(const ParallelPlan& plan, double state_of_one, std::uint64_t members,
                                  SearchCache& cache, Expansion& out) const {
  if (may_offload_activations_) return true;
  const ActivationBytes kept = activation_bytes(job_.model, job_.training, plan, job_.stack);
  const double whole = static_cast<double>(kept.saved_attention + kept.saved_mlp),
               input = std::min(whole, static_cast<double>(kept.saved_input));
  const int n = job_.model.n_layers;
  int again = 0;
  if (plan.recompute.kind == RecomputeKind::full)
    again = plan.recompute.layers < 0 ? n : std::min(n, plan.recompute.layers * plan.pp * most_vp_);
  const double elements = static_cast<double>(cache.elements(plan.tp));
  const double mean = (state_of_one * elements + again * input + (n - again) * whole) / plan.pp;
  return !above_memory(
      mean, plan, members, [] { return "state and one micro-batch of a mean stage"; }, out);
}

SearchTree::Flight SearchTree::flight(const ParallelPlan& plan, const std::vector<LayerRange>& chunks) const {
  const ActivationBytes kept = activation_bytes(job_.model, job_.training, plan, job_.stack);
  const double whole = static_cast<double>(kept.saved_attention + kept.saved_mlp),
               input = std::min(whole, static_cast<double>(kept.saved_input));
  const int m = microbatches(plan, job_.training);
  std::int64_t units = m;  // micro-batches times chunks
  if (plan.schedule == PipelineSchedule::one_f_one_b || plan.schedule == PipelineSchedule::zero_bubble)
    units = std::min(m, plan.pp);
  if (plan.schedule == PipelineSchedule::interleaved) {
    const std::int64_t all = std::int64_t{m} * plan.vp, group = interleaved_group(plan.pp, m);
    units = m == plan.pp
                ? all
                : std::min<std::int64_t>(all, 2 * (std::int64_t{plan.pp} - 1) + (plan.vp - 1) * group + 1);
  }
  int layers = 0;
  double least_unit = INFINITY;
  for (int v = 0; v < plan.vp; ++v) {
    const int count = chunks[static_cast<std::size_t>(v * plan.pp)].count;
    layers += count;
    int again = 0;
    if (plan.recompute.kind == RecomputeKind::full)
      again = plan.recompute.layers < 0 ? count : std::min(count, plan.recompute.layers);
    const int offloaded = std::max(0, std::min(plan.activation_offload, count) - again);
    least_unit = std::min(least_unit, again * input + (count - again - offloaded) * whole);
  }
  const double layer_elements = static_cast<double>(parameter_counts(job_.model).layer()) / plan.tp;
  return {layers * layer_elements, static_cast<double>(units) * least_unit};
}

SearchTree::Held SearchTree::held(const ParallelPlan& plan) const {
  static const PlanLinks no_links;  // sizes do not depend on links
  const lowering::Context c = lowering::make_context(job_.model, job_.training, no_links, plan, job_.stack);
  const ActivationBytes& a = c.activation;
  const auto backward = [&](int layer) {
    RunningBytes running{RunningBytes::ByKind{}};
    SlotWalk(c).layer_backward(running, layer);
    return static_cast<double>(running.peak());
  };
  const auto gathered = static_cast<double>(a.gathered);
  Held h;
  h.whole = static_cast<double>(a.saved_attention + a.saved_mlp);
  h.input = std::min(h.whole, static_cast<double>(a.saved_input));
  h.resident = static_cast<double>(a.transient) + (c.sp() ? 2 * gathered : 0.0);
  if (plan.activation_offload > 0)
    h.resident += (plan.offload_horizon + 1) * static_cast<double>(a.ring_attention + a.ring_mlp);
  const int again = again_of(plan.recompute);
  h.layer = again == kAll ? backward(0) : backward(kAll);
  if (again > 0 && again < kAll) h.layer = std::min(h.layer, backward(0));
  h.head = static_cast<double>(a.logits + a.saved_head) + (c.sp() ? 2 : 1) * gathered;
  h.head_resident = static_cast<double>(a.logits_kept);
  return h;
}

// The mean over stages when their first backward begins, and the head's stage.
double SearchTree::kernels_floor(ParallelPlan plan, SearchCache& cache) const {
  const int n = job_.model.n_layers, again = again_of(plan.recompute);
  const int with_layers = plan.pp == 1 ? 1 : plan.pp - 2;  // every stage but the outer ones
  const double state = lowest_memory_offload(plan) * static_cast<double>(cache.elements(plan.tp)) / plan.pp;
  double least = INFINITY;
  for (const bool split : {false, true})
    for (const bool offload : {false, true}) {
      if ((split && (plan.pp == 1 || !may_split_backward_)) ||
          (offload && (split || !may_offload_activations_ ||
                       (job_.stack.can.activation_offload_needs_recompute && again == 0))))
        continue;
      plan.schedule = split ? PipelineSchedule::zero_bubble : PipelineSchedule::one_f_one_b;
      plan.activation_offload = offload ? 1 : 0;
      plan.offload_horizon = least_horizon_;
      const Held h = held(plan);
      const int inputs = again == kAll ? n
                         : offload     ? std::min(again, with_layers)
                                       : std::min(n, again * plan.pp * most_vp_);
      const double kept = (inputs * h.input + (offload ? 0.0 : (n - inputs) * h.whole)) / plan.pp;
      double mean = state + kept + h.resident + h.layer * with_layers / plan.pp;
      if (plan.pp == 1) mean += h.head_resident + std::max(0.0, h.head - h.layer);
      least = std::min(least, std::max(mean, h.resident + h.head_resident + h.head));
    }
  return std::isfinite(least) ? least : 0;
}

// The first stage when its first backward begins, and the last one.
double SearchTree::stages_floor(const ParallelPlan& plan, double state_of_one,
                                const std::vector<LayerRange>& chunks, const Flight& flight,
                                const Held& h) const {
  const ParameterCounts counts = parameter_counts(job_.model);
  const double state = state_of_one / plan.tp;
  const int again = again_of(plan.recompute);
  int layers = 0;
  double kept = 0;
  for (int v = 0; v < plan.vp; ++v) {
    const int count = chunks[static_cast<std::size_t>((v + 1) * plan.pp - 1)].count;
    const int inputs = std::min(count, again);
    layers += count;
    kept += inputs * h.input + std::max(0, count - std::max(inputs, plan.activation_offload)) * h.whole;
  }
  const auto embedding = static_cast<double>(counts.embedding), layer = static_cast<double>(counts.layer());
  // A tied head is a copy of the embedding where it has a stage of its own.
  const double head = counts.head > 0 || plan.pp == 1 ? static_cast<double>(counts.head) : embedding;
  const double last = state * (layers * layer + head + (plan.pp == 1 ? embedding : 0.0)) + kept + h.resident +
                      h.head_resident + std::max(h.head, layers > 0 ? h.layer : 0.0);
  const double first = state * (flight.elements * plan.tp + embedding) + flight.activations + h.resident +
                       (flight.elements > 0 ? h.layer : 0.0);
  return std::max(first, last);
}

bool SearchTree::flight_fits(const Flight& flight, const ParallelPlan& plan, double state_of_one,
                             std::uint64_t members, Expansion& out) const {
  return !above_memory(
      state_of_one * flight.elements + flight.activations, plan, members,
      [] { return "state of the first stage and its micro-batches in flight"; }, out);
}

bool SearchTree::stages_fit(double floor_bytes, const ParallelPlan& plan, std::uint64_t members,
                            Expansion& out) const {
  return !above_memory(
      floor_bytes, plan, members, [] { return "the first or the last stage, buffers apart"; }, out);
}

// The heaviest stage's own account. Buckets and overlap are open: one bucket, nothing fetched ahead; communication
// buffers may be smaller still and are not counted.
SearchTree::Fullest SearchTree::fullest(ParallelPlan lowest_memory) const {
  lowest_memory.overlap_grad_reduce = lowest_memory.overlap_param_gather = false;
  lowest_memory.bucket_elements = std::numeric_limits<std::int64_t>::max();
  lowest_memory.last_bucket_split = 1;
  const MemoryEstimate estimate = estimate_memory(job_.model, job_.training, lowest_memory, job_.stack);
  Fullest fullest;
  for (std::size_t s = 0; s < estimate.stages.size(); ++s) {
    const StageMemory& stage = estimate.stages[s];
    const auto held = [&](BufferKind kind) {
      return static_cast<double>(stage.at_peak[static_cast<std::size_t>(kind)]);
    };
    double bytes = 0;
    BufferKind largest = BufferKind::parameter;
    for (const BufferKind kind : {BufferKind::parameter, BufferKind::gradient, BufferKind::optimizer_state,
                                  BufferKind::activation, BufferKind::logits, BufferKind::workspace}) {
      bytes += held(kind);
      if (held(kind) > held(largest)) largest = kind;
    }
    if (stage.in_update) bytes /= needed_per_byte(job_.stack.memory);  // which it does not add to
    if (bytes > fullest.bytes) fullest = {bytes, largest, s};
  }
  return fullest;
}

bool SearchTree::estimate_fits(const ParallelPlan& plan, std::uint64_t members, Expansion& out) const {
  const Fullest stage = fullest(plan);
  return !above_memory(
      stage.bytes, plan, members,
      [&] { return fmt::format("most of it {} of stage {}", words(name(stage.largest)), stage.stage); }, out);
}

// Whether what lies below a node may fit the limit as it is now.
bool SearchTree::still_fits(const Node& node, const ParallelPlan& plan, const std::vector<LayerRange>& chunks,
                            Expansion& out) const {
  const bool open = node.level < Level::offload;  // what is offloaded
  if (open && may_offload_activations_) return true;
  if (!flight_fits(flight(plan, chunks), plan, open ? lowest_memory_offload(plan) : state_of_element(plan),
                   node.members, out))
    return false;
  return open || estimate_fits(plan, node.members, out);
}

}  // namespace sextant
