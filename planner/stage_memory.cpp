#include "planner/stage_memory.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "core/pipeline_order.hpp"
#include "cost_models/memory.hpp"
#include "planner/lowering/shapes.hpp"

namespace sextant {
namespace {

using lowering::Context;

// Live bytes by kind while a slot runs, and the fullest moment so far.
class Running {
 public:
  using ByKind = std::array<std::int64_t, kBufferKinds>;
  explicit Running(const ByKind& base) : now_(base) {
    for (const std::int64_t bytes : base) total_ += bytes;
    mark();
  }
  void alloc(BufferKind kind, std::int64_t bytes) {
    now_[static_cast<std::size_t>(kind)] += bytes;
    total_ += bytes;
    mark();
  }
  void free(BufferKind kind, std::int64_t bytes) {
    now_[static_cast<std::size_t>(kind)] -= bytes;
    total_ -= bytes;
  }
  void temporary(std::int64_t bytes) { alloc(BufferKind::workspace, bytes); }
  void drop(std::int64_t bytes) { free(BufferKind::workspace, bytes); }
  std::int64_t peak() const { return peak_; }
  const ByKind& at_peak() const { return at_peak_; }

 private:
  void mark() {
    if (total_ > peak_) peak_ = total_, at_peak_ = now_;
  }
  ByKind now_, at_peak_{};
  std::int64_t total_ = 0, peak_ = -1;
};

// Mirrors planner/lowering/passes.cpp buffer by buffer.
class Walk {
 public:
  Walk(const Context& c)
      : c_(c), b_(c.activation), tp_(c.plan.tp > 1), sp_(c.sp()), split_(c.split_backward()) {
    const Recompute& r = c.plan.recompute;
    again_ = r.kind != RecomputeKind::full ? 0 : (r.layers < 0 ? INT32_MAX : r.layers);
  }

  // What one micro-batch keeps on a chunk until its backward begins, by kind.
  void add_saved(Running::ByKind& base, int chunk, std::int64_t times) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    const int again = std::min(again_, range.count);
    const int offloaded = std::max(0, std::min(c_.plan.activation_offload, range.count) - again);
    at(base, BufferKind::activation) +=
        times *
        (again * b_.saved_input + (range.count - again - offloaded) * (b_.saved_attention + b_.saved_mlp));
    if (chunk + 1 != c_.n_chunks()) return;
    at(base, BufferKind::activation) += times * b_.saved_head;
    at(base, BufferKind::logits) += times * b_.logits;
    if (tp_) at(base, BufferKind::workspace) += times * b_.loss_stats;
  }
  // Zero bubble: what it keeps between its backward and its weight half.
  void add_saved_weight(Running::ByKind& base, int chunk, std::int64_t times) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    at(base, BufferKind::activation) +=
        times * range.count * (b_.saved_attention + b_.saved_mlp + 2 * b_.gathered + b_.qkv_gradient);
    if (chunk + 1 != c_.n_chunks()) return;
    at(base, BufferKind::activation) += times * b_.saved_head;
    at(base, BufferKind::logits) += times * b_.logits;
  }

  void forward(Running& r, int chunk) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    if (chunk == 0) {
      r.temporary(tp_ ? b_.gathered : b_.stream);
      if (sp_) r.temporary(b_.stream), r.drop(b_.gathered);
    }
    std::int64_t branch = 0;
    for (int i = 0; i < range.count; ++i) {
      const bool again = i < again_;
      const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
      if (again) r.alloc(BufferKind::activation, b_.saved_input);
      branch = layer_forward(r, kept, again, branch);
      if (!again && i < c_.plan.activation_offload) r.free(kept, b_.saved_attention + b_.saved_mlp);
    }
    if (chunk + 1 != c_.n_chunks()) return;
    r.alloc(BufferKind::activation, b_.saved_head);
    r.drop(branch);
    if (chunk == 0)
      r.drop(b_.stream);
    else
      r.free(BufferKind::communication, b_.stream);
    if (sp_) r.temporary(b_.gathered);
    r.alloc(BufferKind::logits, b_.logits);
    if (sp_) r.drop(b_.gathered);
    if (tp_) r.temporary(b_.loss_stats);
  }

  void backward(Running& r, int chunk) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    if (chunk + 1 == c_.n_chunks()) {
      if (sp_) r.temporary(b_.gathered);
      r.temporary(b_.gathered);  // gradient of the head's input
      if (sp_) r.drop(b_.gathered);
      if (!split_) r.free(BufferKind::logits, b_.logits);
      if (tp_) r.drop(b_.loss_stats);
      const std::int64_t dx = leave_tp(r);
      r.temporary(b_.stream);
      r.drop(dx);
      if (!split_) r.free(BufferKind::activation, b_.saved_head);
    }
    for (int i = range.count - 1; i >= 0; --i) layer_backward(r, i);
    if (chunk == 0 && sp_) r.temporary(b_.gathered);
  }

  void weight(Running& r, int chunk) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    const auto gather = [&] {
      if (sp_) r.temporary(b_.gathered), r.drop(b_.gathered);
    };
    if (chunk + 1 == c_.n_chunks()) {
      gather();
      r.free(BufferKind::activation, b_.saved_head), r.free(BufferKind::logits, b_.logits);
    }
    for (int i = 0; i < range.count; ++i) {
      gather();
      r.free(BufferKind::activation, b_.saved_mlp + b_.gathered);
      r.free(BufferKind::activation, b_.gathered);
      gather();
      r.free(BufferKind::activation, b_.saved_attention + b_.qkv_gradient);
    }
  }

 private:
  static std::int64_t& at(Running::ByKind& base, BufferKind kind) {
    return base[static_cast<std::size_t>(kind)];
  }

  // A partial result that has just been written leaves the tensor-parallel region; returns what remains of it.
  std::int64_t leave_tp(Running& r) const {
    if (!sp_) return b_.gathered;
    r.temporary(b_.stream);
    r.drop(b_.gathered);
    return b_.stream;
  }

  std::int64_t layer_forward(Running& r, BufferKind kept, bool again, std::int64_t branch) const {
    r.alloc(kept, again ? b_.again_attention : b_.saved_attention);
    r.drop(branch);
    if (sp_) r.temporary(b_.gathered), r.drop(b_.gathered);
    r.temporary(b_.kv_gathered);
    r.temporary(b_.gathered);
    r.drop(b_.kv_gathered);
    if (again) r.free(kept, b_.again_attention);
    branch = leave_tp(r);
    r.alloc(kept, again ? b_.again_mlp : b_.saved_mlp);
    r.drop(branch);
    if (sp_) r.temporary(b_.gathered);
    r.temporary(b_.gathered);
    if (sp_) r.drop(b_.gathered);
    if (again) r.free(kept, b_.again_mlp);
    return leave_tp(r);
  }

  void layer_backward(Running& r, int layer) const {
    const bool again = layer < again_;
    const bool resident = !again && layer < c_.plan.activation_offload;  // in the ring of fetched layers
    const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
    if (again) {
      r.alloc(kept, b_.again_attention);
      if (sp_) r.temporary(b_.gathered), r.drop(b_.gathered);
      r.temporary(b_.kv_gathered);
      r.temporary(b_.gathered);
      r.drop(b_.kv_gathered);
      std::int64_t branch = leave_tp(r);
      r.alloc(kept, b_.again_mlp);
      r.drop(branch);
      r.free(BufferKind::activation, b_.saved_input);
      if (sp_) r.temporary(b_.gathered);
      r.temporary(b_.gathered);
      if (sp_) r.drop(b_.gathered);
      r.drop(leave_tp(r));
    }
    // mlp half
    if (sp_) r.temporary(b_.gathered);
    r.temporary(b_.gathered);
    if (split_) r.alloc(BufferKind::activation, b_.gathered);
    if (sp_) r.drop(b_.gathered);
    std::int64_t dx = leave_tp(r);
    r.drop(dx);
    if (!split_ && !resident) r.free(kept, again ? b_.again_mlp : b_.saved_mlp);
    // attention half
    if (sp_) r.temporary(b_.gathered);
    r.temporary(b_.kv_gathered);
    const BufferKind dqkv = split_ ? BufferKind::activation : BufferKind::workspace;
    r.alloc(dqkv, b_.qkv_gradient);
    r.temporary(b_.kv_gathered);
    if (split_) r.alloc(BufferKind::activation, b_.gathered);
    if (sp_) r.drop(b_.gathered);
    r.drop(2 * b_.kv_gathered);
    r.temporary(b_.gathered);
    if (!split_) r.drop(b_.qkv_gradient);
    dx = leave_tp(r);
    r.drop(dx);
    if (!split_ && !resident) r.free(kept, again ? b_.again_attention : b_.saved_attention);
  }

  const Context& c_;
  const ActivationBytes& b_;
  bool tp_, sp_, split_;
  int again_;
};

std::int64_t rounded(double bytes) { return std::llround(bytes); }

// What rests on a stage all step long. Mirrors StageLowering::make_buffers().
void add_resident(const Context& c, int stage, Running::ByKind& base, std::int64_t& host) {
  const ParameterLayout layout = parameter_layout(c.model, c.plan, c.stack.rules, stage);
  const auto parameter = static_cast<std::int64_t>(c.state.parameter);
  const auto add = [&](BufferKind kind, std::int64_t bytes) {
    (kind == BufferKind::host ? host : base[static_cast<std::size_t>(kind)]) += bytes;
  };
  std::int64_t largest = 0;
  for (const Bucket& bucket : layout.buckets) {
    largest = std::max(largest, bucket.elements);
    const std::int64_t slice = bucket.slice(layout.shards);
    const std::int64_t on_host = rounded(c.plan.optimizer_offload * static_cast<double>(slice));
    if (c.ring_parameters())
      add(c.plan.parameter_offload ? BufferKind::host : BufferKind::parameter, slice * parameter);
    else
      add(BufferKind::parameter, bucket.elements * parameter);
    add(BufferKind::gradient,
        rounded(c.state.gradient * static_cast<double>(c.ring_gradients() ? slice : bucket.elements)));
    add(BufferKind::optimizer_state, rounded(c.state.optimizer * static_cast<double>(slice - on_host)));
    add(BufferKind::host, rounded(c.state.optimizer * static_cast<double>(on_host)) +
                              on_host * size_bytes(c.training.gradient));
  }
  if (c.ring_parameters()) {
    const auto ring = static_cast<std::int64_t>(c.unit_ring_count());
    add(BufferKind::communication, ring * largest * parameter);
    if (c.plan.parameter_offload && layout.shards > 1)
      add(BufferKind::communication, ring * (largest / layout.shards * parameter));
  }
  if (c.ring_gradients())
    add(BufferKind::communication, 2 * rounded(c.state.gradient * static_cast<double>(largest)));
  if (c.sp()) add(BufferKind::communication, 2 * c.activation.gathered);
  add(BufferKind::workspace, c.activation.transient);
  if (stage == c.stage_of(c.n_chunks() - 1)) add(BufferKind::logits, c.activation.logits_kept);
  if (c.plan.activation_offload > 0)
    add(BufferKind::activation,
        (c.plan.offload_horizon + 1) * (c.activation.saved_attention + c.activation.saved_mlp));
  if (c.stack.rules.clip_gradients)
    add(BufferKind::workspace, 8 * static_cast<std::int64_t>(layout.buckets.size()) + 8);
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
    bytes += std::int64_t{o.saved[v]} * offloaded * (c.activation.saved_attention + c.activation.saved_mlp);
  }
  return bytes;
}

// Occupancies depend on the schedule alone; many layouts share one.
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
  auto made = std::make_shared<const std::vector<std::vector<Occupancy>>>(occupancy(schedule, pp, vp, m));
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

double as_measured(const StageMemory& m, const std::string& kind) {
  if (kind == "torch_reserved") return gib(m.allocated() + m.fragmented);
  if (kind.starts_with("torch")) return gib(m.allocated());
  return gib(m.reserved());
}

double chance_of_overflow(Bytes reserved, Bytes capacity, double scale) {
  const double over = static_cast<double>(reserved.v) / static_cast<double>(capacity.v) - 1;
  return 1 / (1 + std::exp(-over / scale));
}

MemoryEstimate estimate_memory(const ModelSpec& model, const TrainingSpec& training, const ParallelPlan& plan,
                               const StackSpec& stack) {
  static const PlanLinks no_links;  // sizes do not depend on links
  const Context c = lowering::make_context(model, training, no_links, plan, stack);
  const Walk walk(c);
  const auto states = cached_occupancy(plan.schedule, plan.pp, plan.vp, c.microbatches);
  MemoryEstimate estimate;
  for (int stage = 0; stage < plan.pp; ++stage) {
    StageMemory memory;
    Running::ByKind resident{};
    add_resident(c, stage, resident, memory.host);
    std::int64_t host_peak = 0;
    std::int64_t peak = -1;
    for (const Occupancy& o : (*states)[static_cast<std::size_t>(stage)]) {
      Running::ByKind base = resident;
      const int own = o.chunk * plan.pp + stage;
      for (int v = 0; v < plan.vp; ++v) {
        const auto i = static_cast<std::size_t>(v);
        const bool mine = v == o.chunk;
        // The slot's own micro-batch: saved by the forward as it goes, still whole when a backward or weight begins.
        walk.add_saved(base, v * plan.pp + stage, o.saved[i] - (mine && o.kind == SlotKind::forward ? 1 : 0));
        const bool own_backward = mine && o.kind == SlotKind::backward && c.split_backward();
        walk.add_saved_weight(base, v * plan.pp + stage, o.saved_weight[i] - (own_backward ? 1 : 0));
      }
      base[static_cast<std::size_t>(BufferKind::communication)] += o.arrived * c.activation.stream;
      Running running(base);
      if (o.kind == SlotKind::forward) walk.forward(running, own);
      if (o.kind == SlotKind::backward) walk.backward(running, own);
      if (o.kind == SlotKind::weight) walk.weight(running, own);
      if (running.peak() > peak) peak = running.peak(), memory.at_peak = running.at_peak();
      host_peak = std::max(host_peak, host_activations(c, o, stage));
    }
    memory.host += host_peak;
    memory.at_peak[static_cast<std::size_t>(BufferKind::host)] = memory.host;
    memory.outside = stack.memory.outside;
    memory.fragmented = Bytes(rounded((stack.memory.fragmentation - 1.0) * static_cast<double>(peak)));
    estimate.stages.push_back(memory);
    if (memory.reserved() > estimate.stages[static_cast<std::size_t>(estimate.heaviest)].reserved())
      estimate.heaviest = stage;
  }
  return estimate;
}

}  // namespace sextant
