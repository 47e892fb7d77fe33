#include "planner/simulation/stage_memory.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/plan/pipeline_order.hpp"
#include "cost_models/memory.hpp"
#include "planner/lowering/shapes.hpp"
#include "planner/simulation/slot_memory.hpp"

namespace sextant {
namespace {

using lowering::Context;

std::int64_t rounded(double bytes) { return std::llround(bytes); }

// What rests on a stage all step long, and what the update takes beyond that. Mirrors StageLowering::make_buffers().
void add_resident(const Context& c, int stage, RunningBytes::ByKind& base, std::int64_t& host,
                  std::int64_t& update) {
  const ParameterLayout layout = parameter_layout(c.model, c.plan, c.stack.rules, stage);
  const auto parameter = static_cast<std::int64_t>(c.state.parameter);
  const auto add = [&](BufferKind kind, std::int64_t bytes) {
    (kind == BufferKind::host ? host : base[static_cast<std::size_t>(kind)]) += bytes;
  };
  std::int64_t largest = 0;
  for (const Bucket& bucket : layout.buckets) {
    largest = std::max(largest, bucket.elements);
    const std::int64_t slice = layout.slice(bucket);
    const std::int64_t on_host = rounded(c.plan.optimizer_offload * static_cast<double>(slice));
    if (c.ring_parameters())
      add(c.plan.parameter_offload ? BufferKind::host : BufferKind::parameter, slice * parameter);
    else
      add(BufferKind::parameter, bucket.elements * parameter);
    if (!c.sums_on_host())
      add(BufferKind::gradient,
          rounded(c.state.gradient * static_cast<double>(c.ring_gradients() ? slice : bucket.elements)));
    add(BufferKind::optimizer_state, rounded(c.state.optimizer * static_cast<double>(slice - on_host)));
    add(BufferKind::host, rounded(c.state.host_optimizer * static_cast<double>(on_host) +
                                  c.state.host_places * static_cast<double>(slice - on_host)) +
                              on_host * size_bytes(c.training.gradient));
  }
  if (const int apart = embedding_apart_from_head(layout, c.model, c.plan, c.stack.rules, c.microbatches);
      apart >= 0)
    add(BufferKind::gradient,
        rounded(c.state.gradient *
                static_cast<double>(layout.parameters[static_cast<std::size_t>(apart)].elements)));
  add(BufferKind::communication, c.ring_bytes(layout));
  if (c.sums_on_host() && c.microbatches > 1)
    add(BufferKind::host, layout.slice(largest) * size_bytes(c.training.gradient));
  update = c.update_workspace(layout);
  if (c.sp()) add(BufferKind::communication, 2 * c.activation.gathered);
  add(BufferKind::workspace, c.activation.transient);
  if (stage == c.stage_of(c.n_chunks() - 1)) add(BufferKind::logits, c.activation.logits_kept);
  if (c.plan.activation_offload > 0)
    add(BufferKind::activation,
        (c.plan.offload_horizon + 1) * (c.activation.ring_attention + c.activation.ring_mlp));
  if (c.stack.rules.clip_gradients)
    add(BufferKind::workspace, 8 * static_cast<std::int64_t>(layout.buckets.size()) + 8);
}

bool same_layers(const Context& c, int a, int b) {
  for (int v = 0; v < c.plan.vp; ++v)
    if (c.ranges[static_cast<std::size_t>(v * c.plan.pp + a)].count !=
        c.ranges[static_cast<std::size_t>(v * c.plan.pp + b)].count)
      return false;
  return true;
}

// What a slot holds at its fullest beyond what was there when it began: the same for all chunks of one shape.
class SlotPeaks {
 public:
  SlotPeaks(const Context& c, const SlotWalk& walk) : context_(c), walk_(walk) {}
  const RunningBytes& of(SlotKind kind, int chunk) {
    const Shape shape{kind, context_.ranges[static_cast<std::size_t>(chunk)].count, chunk == 0,
                      chunk + 1 == context_.n_chunks()};
    for (const auto& [known, running] : walked_)
      if (known == shape) return running;
    RunningBytes running{RunningBytes::ByKind{}};
    if (kind == SlotKind::forward) walk_.forward(running, chunk);
    if (kind == SlotKind::backward) walk_.backward(running, chunk);
    if (kind == SlotKind::weight) walk_.weight(running, chunk);
    return walked_.emplace_back(shape, running).second;
  }

 private:
  using Shape = std::tuple<SlotKind, int, bool, bool>;  // layers; first and last of the model
  const Context& context_;
  const SlotWalk& walk_;
  std::deque<std::pair<Shape, RunningBytes>> walked_;
};

std::int64_t total(const RunningBytes::ByKind& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

// The most micro-batches whose offloaded activations rest on the host at once.
std::int64_t host_activations(const Context& c, const Occupancy& o, int stage) {
  std::int64_t bytes = 0;
  const Recompute& r = c.plan.recompute;
  for (std::size_t v = 0; v < o.saved.size(); ++v) {
    const LayerRange range =
        c.ranges[v * static_cast<std::size_t>(c.plan.pp) + static_cast<std::size_t>(stage)];
    const int again =
        r.kind != RecomputeKind::full ? 0 : (r.layers < 0 ? range.count : std::min(r.layers, range.count));
    const int offloaded = std::max(0, std::min(c.plan.activation_offload, range.count) - again);
    bytes += std::int64_t{o.saved[v]} * (offloaded * (c.activation.saved_attention + c.activation.saved_mlp) +
                                         again * c.activation.host_input);
  }
  return bytes;
}

// Whether `a` holds no less than `b` in every respect, in the same slot.
bool covers(const Occupancy& a, const Occupancy& b) {
  if (a.kind != b.kind || a.chunk != b.chunk || a.arrived < b.arrived) return false;
  for (std::size_t v = 0; v < a.saved.size(); ++v)
    if (a.saved[v] < b.saved[v] || a.saved_weight[v] < b.saved_weight[v]) return false;
  return true;
}

// Occupancies depend on the schedule alone; many layouts share one. Only those that may be the fullest.
std::shared_ptr<const std::vector<std::vector<Occupancy>>> cached_occupancy(PipelineSchedule schedule, int pp,
                                                                            int vp, int m) {
  using Key = std::tuple<PipelineSchedule, int, int, int>;
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const std::vector<std::vector<Occupancy>>>> cache;
  const Key key{schedule, pp, vp, m};
  {
    const std::lock_guard lock(mutex);
    if (const auto found = cache.find(key); found != cache.end()) return found->second;
  }
  auto kept = occupancy(schedule, pp, vp, m);
  for (std::vector<Occupancy>& list : kept) {
    std::vector<Occupancy> fullest;
    for (const Occupancy& o : list) {
      if (std::any_of(fullest.begin(), fullest.end(), [&](const Occupancy& f) { return covers(f, o); }))
        continue;
      std::erase_if(fullest, [&](const Occupancy& f) { return covers(o, f); });
      fullest.push_back(o);
    }
    list = std::move(fullest);
  }
  auto made = std::make_shared<const std::vector<std::vector<Occupancy>>>(std::move(kept));
  const std::lock_guard lock(mutex);
  return cache.emplace(key, std::move(made)).first->second;
}

}  // namespace

Bytes StageMemory::allocated() const {
  std::int64_t total = 0;
  for (std::size_t k = 0; k < at_peak.size(); ++k)
    if (static_cast<BufferKind>(k) != BufferKind::host) total += at_peak[k];
  return Bytes(total);
}

double as_measured(const MemoryEstimate& e, const ParallelPlan& plan, const ClusterSpec& cluster,
                   const std::string& kind) {
  const StageMemory* m = &e.stages[static_cast<std::size_t>(e.heaviest)];
  if (kind == "nvidia_smi") {
    const RankGrid grid(plan);
    m = &e.stages.front();
    for (int rank = 0; rank < std::min(cluster.node.gpus, plan.world()); ++rank) {
      const StageMemory& stage = e.stages[static_cast<std::size_t>(grid.coord(rank).pp)];
      if (stage.reserved() > m->reserved()) m = &stage;
    }
  }
  if (kind.starts_with("torch") && kind != "torch_reserved") return gib(m->allocated());
  // Where it does not all fit, the allocator has given back what it could: no more is seen than there is.
  const Bytes seen = std::max(m->needed(), std::min(m->reserved(), cluster.device.memory));
  return gib(kind == "torch_reserved" ? seen - m->outside : seen);
}

double overflow_scale(const StackSpec& stack) {
  return stack.memory.exact_tensors ? kExactOverflowScale : kOverflowScale;
}

double chance_of_overflow(Bytes needed, Bytes capacity, double scale) {
  const double over = static_cast<double>(needed.v) / static_cast<double>(capacity.v) - 1;
  return 1 / (1 + std::exp(-over / scale));
}

Bytes most_needed(Bytes capacity, double chance, double scale) {
  const double share = std::clamp(1 + scale * std::log(chance / (1 - chance)), 0.0, 1.0);
  Bytes most(std::llround(share * static_cast<double>(capacity.v)));
  while (most.v > 0 && most < capacity && chance_of_overflow(most, capacity, scale) > chance)
    --most.v;  // rounding
  return most;
}

Bytes most_needed(const DeviceSpec& device, const StackSpec& stack, double chance) {
  return most_needed(device.memory, chance, overflow_scale(stack));
}

namespace {

// What one micro-batch keeps on each chunk of a stage, before its backward and, with a split one, behind it.
class KeptByChunk {
 public:
  KeptByChunk(const Context& c, const SlotWalk& walk, int stage)
      : split_backward_(c.split_backward()), kept_(static_cast<std::size_t>(c.plan.vp)) {
    for (std::size_t v = 0; v < kept_.size(); ++v) {
      Kept& of = kept_[v];
      walk.add_saved(of.saved, static_cast<int>(v) * c.plan.pp + stage);
      if (split_backward_) walk.add_saved_weight(of.saved_weight, static_cast<int>(v) * c.plan.pp + stage);
      of.all_saved = total(of.saved);
      of.all_saved_weight = total(of.saved_weight);
    }
  }

  // Bytes that are there when the slot begins.
  std::int64_t bytes(const Occupancy& o) const {
    std::int64_t sum = 0;
    each(o, [&](const Kept& of, std::int64_t whole, std::int64_t weight) {
      sum += whole * of.all_saved + weight * of.all_saved_weight;
    });
    return sum;
  }
  void add_to(RunningBytes::ByKind& bytes, const Occupancy& o) const {
    each(o, [&](const Kept& of, std::int64_t whole, std::int64_t weight) {
      for (std::size_t k = 0; k < bytes.size(); ++k)
        bytes[k] += whole * of.saved[k] + weight * of.saved_weight[k];
    });
  }

 private:
  struct Kept {
    RunningBytes::ByKind saved{}, saved_weight{};
    std::int64_t all_saved = 0, all_saved_weight = 0;
  };
  // Its own micro-batch is saved by the forward as it goes, and is still whole when a backward or weight begins.
  template <class Add>
  void each(const Occupancy& o, const Add& add) const {
    for (std::size_t v = 0; v < kept_.size(); ++v) {
      const bool mine = v == o.chunk;
      add(kept_[v], o.saved[v] - (mine && o.kind == SlotKind::forward ? 1 : 0),
          split_backward_ ? o.saved_weight[v] - (mine && o.kind == SlotKind::backward ? 1 : 0) : 0);
    }
  }
  bool split_backward_;
  std::vector<Kept> kept_;  // by chunk of the stage
};

// The slot in which a stage holds most beyond what rests there, and the most that its activations take of the host.
struct FullestSlot {
  const Occupancy* slot = nullptr;
  std::int64_t bytes = -1, on_host = 0;
};
FullestSlot fullest_slot(const Context& c, const std::vector<Occupancy>& slots, const KeptByChunk& kept,
                         SlotPeaks& peaks, int stage) {
  FullestSlot fullest;
  for (const Occupancy& o : slots) {
    const std::int64_t bytes = o.arrived * c.activation.stream +
                               peaks.of(o.kind, o.chunk * c.plan.pp + stage).peak() + kept.bytes(o);
    if (bytes > fullest.bytes) {
      fullest.bytes = bytes;
      fullest.slot = &o;
    }
    fullest.on_host = std::max(fullest.on_host, host_activations(c, o, stage));
  }
  return fullest;
}

// Adds what lies outside the allocator, and what its blocks keep beyond `peak`. The passes, which need `in_passes`, leave blocks of
// all sizes behind; the few large ones of the update take what they leave and add no reserve of their own. Seen in published peaks
// of Megatron-DeepSpeed with one replica.
void add_reserve(const StackMemory& rules, int world, std::int64_t in_passes, std::int64_t peak,
                 StageMemory& memory) {
  memory.outside = outside_of(rules, world);
  const std::int64_t reserve =
      std::max<std::int64_t>(0, rounded(rules.fragmentation * static_cast<double>(in_passes)) - peak);
  memory.fragmented = Bytes(rounded(rules.reserve_needed * static_cast<double>(reserve)));
  memory.cached = Bytes(reserve) - memory.fragmented;
}

}  // namespace

MemoryEstimate estimate_memory(const ModelSpec& model, const TrainingSpec& training, const ParallelPlan& plan,
                               const StackSpec& stack) {
  static const PlanLinks no_links;  // sizes do not depend on links
  const Context c = lowering::make_context(model, training, no_links, plan, stack);
  const SlotWalk walk(c);
  SlotPeaks peaks(c, walk);
  const auto states = cached_occupancy(plan.schedule, plan.pp, plan.vp, c.microbatches);
  MemoryEstimate estimate;
  RunningBytes::ByKind resident_before{};
  std::int64_t host_before = 0, update = 0;
  for (int stage = 0; stage < plan.pp; ++stage) {
    StageMemory memory;
    RunningBytes::ByKind resident{};
    if (stage > 1 && stage + 1 < plan.pp && same_layers(c, stage - 1, stage)) {
      resident = resident_before;
      memory.host = host_before;
    } else {
      add_resident(c, stage, resident, memory.host, update);
    }
    resident_before = resident;
    host_before = memory.host;
    const KeptByChunk kept(c, walk, stage);
    const FullestSlot fullest =
        fullest_slot(c, (*states)[static_cast<std::size_t>(stage)], kept, peaks, stage);
    const auto at_peak = [&](BufferKind kind) -> std::int64_t& {
      return memory.at_peak[static_cast<std::size_t>(kind)];
    };
    const std::int64_t held = total(resident);
    memory.at_peak = resident;
    memory.in_update = update > 0 && update >= fullest.bytes;  // before the first pass
    if (memory.in_update) {
      at_peak(BufferKind::workspace) += update;
    } else {
      const Occupancy& o = *fullest.slot;
      at_peak(BufferKind::communication) += o.arrived * c.activation.stream;
      kept.add_to(memory.at_peak, o);
      const RunningBytes::ByKind& in_slot = peaks.of(o.kind, o.chunk * plan.pp + stage).at_peak();
      for (std::size_t k = 0; k < in_slot.size(); ++k) memory.at_peak[k] += in_slot[k];
    }
    memory.host += fullest.on_host;
    at_peak(BufferKind::host) = memory.host;
    add_reserve(stack.memory, plan.world(), held + fullest.bytes,
                held + (memory.in_update ? update : fullest.bytes), memory);
    estimate.stages.push_back(memory);
    if (memory.needed() > estimate.stages[static_cast<std::size_t>(estimate.heaviest)].needed())
      estimate.heaviest = stage;
  }
  return estimate;
}

}  // namespace sextant
