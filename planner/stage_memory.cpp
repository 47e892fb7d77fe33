#include "planner/stage_memory.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

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
  const ByKind& now() const { return now_; }
  // As often again what has happened since `before`, without looking at the moments between.
  void repeat(const ByKind& before, std::int64_t times) {
    for (std::size_t k = 0; k < now_.size(); ++k) {
      const std::int64_t more = times * (now_[k] - before[k]);
      now_[k] += more, total_ += more;
    }
  }

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
  void add_saved(Running::ByKind& base, int chunk) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    const int again = std::min(again_, range.count);
    const int offloaded = std::max(0, std::min(c_.plan.activation_offload, range.count) - again);
    at(base, BufferKind::activation) +=
        (again * b_.saved_input + (range.count - again - offloaded) * (b_.saved_attention + b_.saved_mlp));
    if (chunk + 1 != c_.n_chunks()) return;
    at(base, BufferKind::activation) += b_.saved_head;
    at(base, BufferKind::logits) += b_.logits;
    if (tp_) at(base, BufferKind::workspace) += b_.loss_stats;
  }
  // Zero bubble: what it keeps between its backward and its weight half.
  void add_saved_weight(Running::ByKind& base, int chunk) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    at(base, BufferKind::activation) +=
        range.count *
        (b_.saved_attention + b_.saved_mlp + b_.deferred_attention + b_.deferred_mlp + b_.qkv_gradient);
    if (chunk + 1 != c_.n_chunks()) return;
    at(base, BufferKind::activation) += b_.saved_head;
    at(base, BufferKind::logits) += b_.logits;
  }

  void forward(Running& r, int chunk) const {
    const LayerRange range = c_.ranges[static_cast<std::size_t>(chunk)];
    if (chunk == 0) {
      r.temporary(tp_ ? b_.gathered : b_.stream);
      if (sp_) r.temporary(b_.stream), r.drop(b_.gathered);
    }
    std::int64_t branch = 0;
    each_layer(r, range.count, false, [&](int i) {
      const bool again = i < again_;
      const BufferKind kept = again ? BufferKind::workspace : BufferKind::activation;
      if (again) r.alloc(BufferKind::activation, b_.saved_input);
      branch = layer_forward(r, kept, again, branch);
      if (!again && i < c_.plan.activation_offload) r.free(kept, b_.saved_attention + b_.saved_mlp);
    });
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
    each_layer(r, range.count, true, [&](int i) { layer_backward(r, i); });
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
    each_layer(r, range.count, false, [&](int) {
      gather();
      r.free(BufferKind::activation, b_.saved_mlp + b_.deferred_mlp);
      r.free(BufferKind::activation, b_.deferred_attention);
      gather();
      r.free(BufferKind::activation, b_.saved_attention + b_.qkv_gradient);
    });
  }

 private:
  static std::int64_t& at(Running::ByKind& base, BufferKind kind) {
    return base[static_cast<std::size_t>(kind)];
  }

  // Layers are recomputed, offloaded or neither, in that order. From the second of a kind on each changes what is held by
  // the same bytes, so that the fullest moment is in the first two or in the last: those between are not walked.
  template <class Layer>
  void each_layer(Running& r, int count, bool backwards, const Layer& layer) const {
    const int again = std::min(again_, count),
              offloaded = std::clamp(c_.plan.activation_offload, again, count);
    const int ends[] = {0, again, offloaded, count};
    for (int kind = 0; kind < 3; ++kind) {
      const int i = backwards ? 2 - kind : kind;
      const int n = ends[i + 1] - ends[i];
      const auto nth = [&](int k) { layer(backwards ? ends[i + 1] - 1 - k : ends[i] + k); };
      for (int k = 0; k < n; ++k) {
        const Running::ByKind before = r.now();
        nth(k);
        if (k == 1 && n > 3) r.repeat(before, n - 3), k = n - 2;
      }
    }
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
    if (split_) r.alloc(BufferKind::activation, b_.deferred_mlp);
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
    if (split_) r.alloc(BufferKind::activation, b_.deferred_attention);
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
    add(BufferKind::host, rounded(c.state.host_optimizer * static_cast<double>(on_host)) +
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
  SlotPeaks(const Context& c, const Walk& walk) : c_(c), walk_(walk) {}
  const Running& of(SlotKind kind, int chunk) {
    const Shape shape{kind, c_.ranges[static_cast<std::size_t>(chunk)].count, chunk == 0,
                      chunk + 1 == c_.n_chunks()};
    for (const auto& [known, running] : walked_)
      if (known == shape) return running;
    Running running{Running::ByKind{}};
    if (kind == SlotKind::forward) walk_.forward(running, chunk);
    if (kind == SlotKind::backward) walk_.backward(running, chunk);
    if (kind == SlotKind::weight) walk_.weight(running, chunk);
    return walked_.emplace_back(shape, running).second;
  }

 private:
  using Shape = std::tuple<SlotKind, int, bool, bool>;  // layers; first and last of the model
  const Context& c_;
  const Walk& walk_;
  std::deque<std::pair<Shape, Running>> walked_;
};

std::int64_t total(const Running::ByKind& bytes) {
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
    bytes += std::int64_t{o.saved[v]} * offloaded * (c.activation.saved_attention + c.activation.saved_mlp);
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
  SlotPeaks peaks(c, walk);
  const auto states = cached_occupancy(plan.schedule, plan.pp, plan.vp, c.microbatches);
  MemoryEstimate estimate;
  Running::ByKind resident_before{};
  std::int64_t host_before = 0;
  for (int stage = 0; stage < plan.pp; ++stage) {
    StageMemory memory;
    Running::ByKind resident{};
    if (stage > 1 && stage + 1 < plan.pp && same_layers(c, stage - 1, stage))
      resident = resident_before, memory.host = host_before;
    else
      add_resident(c, stage, resident, memory.host);
    resident_before = resident, host_before = memory.host;
    // By chunk: what one micro-batch keeps, before its backward and, with a split one, behind it.
    const auto chunks = static_cast<std::size_t>(plan.vp);
    std::vector<Running::ByKind> saved(chunks), saved_weight(chunks);
    for (std::size_t v = 0; v < chunks; ++v) {
      walk.add_saved(saved[v], static_cast<int>(v) * plan.pp + stage);
      if (c.split_backward()) walk.add_saved_weight(saved_weight[v], static_cast<int>(v) * plan.pp + stage);
    }
    // What is there when the slot begins. Its own micro-batch is saved by the forward as it goes, and is still whole when
    // a backward or weight begins.
    const auto begins_with = [&](const Occupancy& o, const auto& add) {
      for (std::size_t v = 0; v < chunks; ++v) {
        const bool mine = v == o.chunk;
        add(saved[v], o.saved[v] - (mine && o.kind == SlotKind::forward ? 1 : 0));
        if (c.split_backward())
          add(saved_weight[v], o.saved_weight[v] - (mine && o.kind == SlotKind::backward ? 1 : 0));
      }
    };
    const Occupancy* fullest = nullptr;
    std::int64_t peak = -1, host_peak = 0;
    for (const Occupancy& o : (*states)[static_cast<std::size_t>(stage)]) {
      std::int64_t bytes =
          o.arrived * c.activation.stream + peaks.of(o.kind, o.chunk * plan.pp + stage).peak();
      begins_with(o, [&](const Running::ByKind& kept, std::int64_t times) { bytes += times * total(kept); });
      if (bytes > peak) peak = bytes, fullest = &o;
      host_peak = std::max(host_peak, host_activations(c, o, stage));
    }
    peak += total(resident);
    memory.at_peak = resident;
    const auto add = [&](const Running::ByKind& kept, std::int64_t times) {
      for (std::size_t k = 0; k < kept.size(); ++k) memory.at_peak[k] += times * kept[k];
    };
    memory.at_peak[static_cast<std::size_t>(BufferKind::communication)] +=
        fullest->arrived * c.activation.stream;
    begins_with(*fullest, add);
    add(peaks.of(fullest->kind, fullest->chunk * plan.pp + stage).at_peak(), 1);
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
