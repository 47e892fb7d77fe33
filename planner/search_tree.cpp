#include "planner/search_tree.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "core/parameter_layout.hpp"
#include "planner/stage_memory.hpp"

namespace sextant {
namespace {

// A neutral member: nothing in it can be refused that another choice of the undecided fields would allow.
ParallelPlan neutral() {
  ParallelPlan p;
  p.overlap_grad_reduce = p.overlap_param_gather = false;
  return p;
}

// Axis orders differ only in where axes of extent above 1 stand.
std::vector<Axis> placed_axes(const ParallelPlan& p) {
  std::vector<Axis> out;
  for (const Axis axis : p.axis_order) {
    const int extent = axis == Axis::tp ? p.tp : axis == Axis::cp ? p.cp : axis == Axis::dp ? p.dp : p.pp;
    if (extent > 1) out.push_back(axis);
  }
  return out;
}

bool same_core(const PlanLinks& a, const PlanLinks& b) {
  if (a.stages.size() != b.stages.size() || a.world != b.world || a.tied != b.tied) return false;
  for (std::size_t s = 0; s < a.stages.size(); ++s)
    if (a.stages[s].tp != b.stages[s].tp || a.stages[s].cp != b.stages[s].cp ||
        a.stages[s].next != b.stages[s].next)
      return false;
  return true;
}
bool same_links(const PlanLinks& a, const PlanLinks& b) {
  return a.stages == b.stages && a.world == b.world && a.tied == b.tied;
}

// One micro-batch through the whole model, on the compute lane.
double model_time(const LayerTimes& t, int n_layers, int recomputed) {
  return recomputed * t.layer_total(true) + (n_layers - recomputed) * t.layer_total(false) +
         t.embedding_forward + t.embedding_backward + t.head_forward + t.head_backward + t.head_weight;
}

// Least step over all schedules and stage splits: the mean over stages of [its first forward's arrival + its work].
// Every inner chunk holds a layer at least.
double unscheduled_bound(const LayerTimes& t, int n_layers, int recomputed, int pp, int microbatches) {
  const double ramp = pp > 2 ? (pp - 1.0) * (pp - 2.0) / (2.0 * pp) * t.forward : 0.0;
  return microbatches * model_time(t, n_layers, recomputed) / pp + ramp;
}

}  // namespace

class TreeCache {
 public:
  explicit TreeCache(const SearchTree& tree) : tree_(tree) {}

  const PlanLinks& links(const ParallelPlan& p) {
    Key key{p.tp, p.cp, p.pp, p.dp, axes_code(p.axis_order), p.shards()};
    auto& slot = links_[key];
    if (!slot) slot = std::make_unique<PlanLinks>(plan_links(tree_.job_.topology, p));
    return *slot;
  }

  // Times of a layer by stage (one entry when stages are equal); without communication when `linked` is false.
  const std::vector<LayerTimes>& layers(const ParallelPlan& p, bool linked = true) {
    const bool split = p.schedule == PipelineSchedule::zero_bubble;
    const PlanLinks* l = linked ? &links(core(p)) : nullptr;
    // Prices depend on the links of tp, cp and the next stage alone; those are shared by many placements.
    const int link = l ? core_id(*l) : -1;
    Key key{p.tp,  p.cp, p.micro_batch, p.sequence_parallel, p.overlap_tp, static_cast<int>(p.recompute.kind),
            split, link, p.pp > 1,      steady_code(p)};
    auto& slot = layers_[key];
    if (!slot) {
      slot = std::make_unique<std::vector<LayerTimes>>();
      if (!l)
        slot->push_back(layer_times(tree_.job_, p, nullptr));
      else
        for (const StageLinks& stage : l->stages) slot->push_back(layer_times(tree_.job_, p, &stage));
    }
    return *slot;
  }

  const std::vector<StateTimes>& state(const ParallelPlan& p, const std::vector<LayerRange>& chunks) {
    const bool fetched = p.zero_stage >= 2 || p.parameter_offload;  // times over all micro-batches
    Key key{p.tp,
            p.cp,
            p.pp,
            p.vp,
            axes_code(p.axis_order),
            p.shards(),
            p.zero_stage,
            p.sequence_parallel,
            static_cast<int>(1000 * p.optimizer_offload),
            p.parameter_offload,
            static_cast<int>(p.bucket_elements / 1000),
            p.last_bucket_split,
            p.overlap_grad_reduce,
            p.overlap_param_gather,
            fetched ? microbatches(p, tree_.job_.training) : 0,
            chunks_id(chunks)};
    auto& slot = state_[key];
    if (!slot) slot = std::make_unique<std::vector<StateTimes>>(state_times(tree_.job_, p, links(p)));
    return *slot;
  }

  const std::vector<StageSlot>& order(const ParallelPlan& p, int m) {
    const Key key{static_cast<int>(p.schedule), p.pp, p.vp, m};
    if (key != order_key_ || order_.empty())
      order_key_ = key, order_ = merged_order(p.schedule, p.pp, p.vp, m);
    return order_;
  }

  // Orders of axes that give other links than all before them, by equal links of tp, cp, stages and world.
  struct Classes {
    std::vector<std::vector<std::uint8_t>> members;
    std::size_t repeated = 0;  // orders that place the same ranks as an earlier one
  };
  const Classes& classes(ParallelPlan p) {
    Key key{p.tp, p.cp, p.pp, p.dp};
    auto& slot = classes_[key];
    if (slot) return *slot;
    slot = std::make_unique<Classes>();
    std::set<std::vector<Axis>> seen;
    for (std::size_t i = 0; i < tree_.space_.axis_order.size(); ++i) {
      p.axis_order = tree_.space_.axis_order[i];
      if (!seen.insert(placed_axes(p)).second) {
        ++slot->repeated;
        continue;
      }
      const PlanLinks& mine = links(core(p));
      bool found = false;
      for (auto& group : slot->members) {
        ParallelPlan first = p;
        first.axis_order = tree_.space_.axis_order[group.front()];
        if ((found = same_core(links(core(first)), mine))) {
          group.push_back(static_cast<std::uint8_t>(i));
          break;
        }
      }
      if (!found) slot->members.push_back({static_cast<std::uint8_t>(i)});
    }
    return *slot;
  }

  static ParallelPlan core(ParallelPlan p) {  // sharding does not move the links of tp, cp and stages
    p.zero_stage = 0, p.shard_degree = 0;
    return p;
  }

 private:
  using Key = std::vector<int>;
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      std::size_t h = 1469598103934665603ull;
      for (const int x : key) h = (h ^ static_cast<std::size_t>(static_cast<unsigned>(x))) * 1099511628211ull;
      return h;
    }
  };
  template <class T>
  using Map = std::unordered_map<Key, std::unique_ptr<T>, KeyHash>;

  static int axes_code(const AxisOrder& order) {
    int code = 0;
    for (const Axis axis : order) code = 4 * code + static_cast<int>(axis);
    return code;
  }
  // Whether gathers under SP are sure to run beside compute depends on what else may hold it up.
  static int steady_code(const ParallelPlan& p) {
    return p.zero_stage >= 2 || p.parameter_offload || p.activation_offload > 0 ? p.zero_stage + 4 : 0;
  }
  int core_id(const PlanLinks& l) {
    std::vector<StageLinks> stages = l.stages;
    for (StageLinks& s : stages) s.shard = s.replica = GroupShape{};
    const auto found = std::find(cores_.begin(), cores_.end(), stages);
    if (found != cores_.end()) return static_cast<int>(found - cores_.begin());
    cores_.push_back(std::move(stages));
    return static_cast<int>(cores_.size() - 1);
  }
  int chunks_id(const std::vector<LayerRange>& chunks) {
    std::vector<int> counts;
    for (const LayerRange& c : chunks) counts.push_back(c.count);
    return chunk_ids_.emplace(std::move(counts), static_cast<int>(chunk_ids_.size())).first->second;
  }

  const SearchTree& tree_;
  Map<PlanLinks> links_;
  Map<std::vector<LayerTimes>> layers_;
  Map<std::vector<StateTimes>> state_;
  Map<Classes> classes_;
  std::vector<std::vector<StageLinks>> cores_;
  std::map<std::vector<int>, int> chunk_ids_;
  Key order_key_;
  std::vector<StageSlot> order_;
};

SearchTree::SearchTree(const Job& job, const SearchSpace& space, Bytes memory_limit)
    : job_(job), space_(space), memory_limit_(memory_limit) {}
SearchTree::~SearchTree() = default;

std::shared_ptr<TreeCache> SearchTree::make_cache() const { return std::make_shared<TreeCache>(*this); }

std::uint64_t SearchTree::below(Level level) const {
  const SearchSpace& s = space_;
  std::uint64_t n = 1;
  switch (level) {
    case Level::root:
      n *= s.tp.size() * s.cp.size() * s.pp.size();
      [[fallthrough]];
    case Level::degrees:
      n *= s.axis_order.size() * s.micro_batch.size();
      [[fallthrough]];
    case Level::placement:
      n *= s.sequence_parallel.size() * s.overlap_tp.size() * s.recompute.size();
      [[fallthrough]];
    case Level::kernels:
      n *= s.form.size() * s.split.size();
      [[fallthrough]];
    case Level::pipeline:
      n *= s.zero_stage.size() * s.shard_degree.size() * s.optimizer_offload.size() *
           s.parameter_offload.size() * s.activation_offload.size();
      [[fallthrough]];
    case Level::state:
      n *= s.bucket_elements.size() * s.last_bucket_split.size() * s.overlap_grad_reduce.size() *
           s.overlap_param_gather.size();
      [[fallthrough]];
    case Level::full:
      break;
  }
  return n;
}

Node SearchTree::root() const {
  Node node;
  node.members = space_.size();
  return node;
}

bool SearchTree::lawful(const ParallelPlan& plan, std::uint64_t members, Expansion& out) const {
  const auto rejection = unlawful(job_, plan);
  if (!rejection) return true;
  const Fate fate = rejection->reason == RejectReason::contradiction  ? Fate::contradiction
                    : rejection->reason == RejectReason::stack_cannot ? Fate::stack_cannot
                                                                      : Fate::not_divisible;
  out.fates[fate] += members;
  if (out.examples.size() < 8) out.examples.push_back({fate, plan_key(plan), rejection->text});
  return false;
}

ParallelPlan SearchTree::plan(const Choice& choice, TreeCache& cache) const {
  ParallelPlan p = plan_of(space_, choice);
  const int n_chunks = p.pp * p.vp;
  if (space_.split[choice.split] != StageSplit::balanced || n_chunks == 1 || n_chunks > job_.model.n_layers)
    return p;
  // Balanced by the first stage's prices, without what else the member decides.
  ParallelPlan priced = TreeCache::core(p);
  priced.activation_offload = 0, priced.parameter_offload = false;
  const LayerTimes& t = cache.layers(priced).front();
  const bool recomputed = p.recompute.kind == RecomputeKind::full && p.recompute.layers < 0;
  p.chunks = balanced_chunks(job_.model.n_layers, n_chunks,
                             {t.layer_total(recomputed), t.embedding_forward + t.embedding_backward,
                              t.head_forward + t.head_backward + t.head_weight});
  ParallelPlan even = p;
  even.chunks.clear();
  if (layer_ranges(even, job_.model.n_layers) == p.chunks) p.chunks.clear();
  return p;
}

PlanLinks SearchTree::links(const Choice& choice, TreeCache& cache) const {
  return cache.links(plan_of(space_, choice));
}

void SearchTree::expand(const Node& node, TreeCache& cache, Expansion& out) const {
  switch (node.level) {
    case Level::root:
      return expand_root(cache, out);
    case Level::degrees:
      return expand_degrees(node, cache, out);
    case Level::placement:
      return expand_placement(node, cache, out);
    case Level::kernels:
      return expand_kernels(node, cache, out);
    case Level::pipeline:
      return expand_pipeline(node, cache, out);
    case Level::state:
      return expand_state(node, cache, out);
    case Level::full:
      break;
  }
}

void SearchTree::expand_root(TreeCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::degrees);
  for (std::size_t tp = 0; tp < space_.tp.size(); ++tp)
    for (std::size_t cp = 0; cp < space_.cp.size(); ++cp)
      for (std::size_t pp = 0; pp < space_.pp.size(); ++pp) {
        ParallelPlan p = neutral();
        p.tp = space_.tp[tp], p.cp = space_.cp[cp], p.pp = space_.pp[pp];
        const std::int64_t ranks = std::int64_t{p.tp} * p.cp * p.pp;
        if (ranks > space_.world || space_.world % ranks != 0) {
          out.fates[Fate::not_divisible] += members;
          continue;
        }
        p.dp = static_cast<int>(space_.world / ranks);
        if (!space_.limits.admits(PlanField::dp, p.dp)) {
          out.fates[Fate::outside_limits] += members;
          continue;
        }
        if (!lawful(p, members, out)) continue;
        Node child;
        child.level = Level::degrees;
        child.choice.tp = static_cast<std::uint8_t>(tp), child.choice.cp = static_cast<std::uint8_t>(cp),
        child.choice.pp = static_cast<std::uint8_t>(pp);
        child.members = members;
        child.bound = INFINITY;
        for (const int mbs : space_.micro_batch) {
          p.micro_batch = mbs;
          const int m = microbatches(p, job_.training);
          if (m == 0) continue;
          for (const std::uint8_t sp : space_.sequence_parallel) {
            p.sequence_parallel = sp && p.tp > 1;
            const LayerTimes& t = cache.layers(p, false).front();
            child.bound = std::min(child.bound, unscheduled_bound(t, job_.model.n_layers, 0, p.pp, m));
          }
          ++out.bounds;
        }
        if (!std::isfinite(child.bound)) child.bound = 0;
        out.children.push_back(child);
      }
}

void SearchTree::expand_degrees(const Node& node, TreeCache& cache, Expansion& out) const {
  const std::uint64_t members = below(Level::placement);
  ParallelPlan p = neutral();
  const ParallelPlan decided = plan_of(space_, node.choice);
  p.tp = decided.tp, p.cp = decided.cp, p.pp = decided.pp, p.dp = decided.dp;
  const TreeCache::Classes& classes = cache.classes(p);
  out.fates[Fate::repeated] += classes.repeated * space_.micro_batch.size() * members;
  const std::uint64_t orders = space_.axis_order.size() - classes.repeated;
  for (std::size_t i = 0; i < space_.micro_batch.size(); ++i) {
    p.micro_batch = space_.micro_batch[i];
    p.axis_order = ParallelPlan{}.axis_order;
    if (!lawful(p, orders * members, out)) continue;
    const int m = microbatches(p, job_.training);
    for (const auto& group : classes.members) {
      Node child = node;
      child.level = Level::placement;
      child.choice.micro_batch = static_cast<std::uint8_t>(i);
      child.choice.axis_order = group.front();
      child.members = group.size() * members;
      p.axis_order = space_.axis_order[group.front()];
      double least = INFINITY;
      for (const std::uint8_t sp : space_.sequence_parallel)
        for (const std::uint8_t tiled : space_.overlap_tp) {
          if ((sp || tiled) && p.tp == 1) continue;
          if (tiled && !job_.stack.can.overlap_tp) continue;
          ParallelPlan q = p;
          q.sequence_parallel = sp, q.overlap_tp = tiled;
          for (const LayerTimes& t : cache.layers(q))
            least = std::min(least, unscheduled_bound(t, job_.model.n_layers, 0, p.pp, m));
        }
      ++out.bounds;
      if (std::isfinite(least)) child.bound = std::max(child.bound, least);
      out.children.push_back(child);
    }
  }
}

void SearchTree::expand_placement(const Node& node, TreeCache& cache, Expansion& out) const {
  const std::uint64_t each = below(Level::kernels);
  const std::uint64_t orders = node.members / below(Level::placement);
  const ParallelPlan decided = plan_of(space_, node.choice);
  ParallelPlan p = neutral();
  p.tp = decided.tp, p.cp = decided.cp, p.pp = decided.pp, p.dp = decided.dp;
  p.axis_order = decided.axis_order, p.micro_batch = decided.micro_batch;
  const int m = microbatches(p, job_.training);
  const bool may_split = std::any_of(space_.form.begin(), space_.form.end(), [](const PipelineForm& f) {
    return f.schedule == PipelineSchedule::zero_bubble;
  });
  for (std::size_t sp = 0; sp < space_.sequence_parallel.size(); ++sp)
    for (std::size_t tiled = 0; tiled < space_.overlap_tp.size(); ++tiled)
      for (std::size_t r = 0; r < space_.recompute.size(); ++r) {
        p.sequence_parallel = space_.sequence_parallel[sp] != 0;
        p.overlap_tp = space_.overlap_tp[tiled] != 0;
        p.recompute = space_.recompute[r];
        const std::uint64_t members = orders * each;
        if (!lawful(p, members, out)) continue;
        Node child = node;
        child.level = Level::kernels;
        child.choice.sequence_parallel = static_cast<std::uint8_t>(sp);
        child.choice.overlap_tp = static_cast<std::uint8_t>(tiled);
        child.choice.recompute = static_cast<std::uint8_t>(r);
        child.members = members;
        int again = 0;
        if (p.recompute.kind == RecomputeKind::full)
          again = p.recompute.layers < 0 ? job_.model.n_layers
                                         : std::min(p.recompute.layers, job_.model.n_layers);
        double least = INFINITY;
        const auto look = [&](const ParallelPlan& q) {
          for (const LayerTimes& t : cache.layers(q))
            least = std::min(least, unscheduled_bound(t, job_.model.n_layers, again, p.pp, m));
        };
        look(p);
        if (may_split && p.pp > 1 && job_.stack.can.zero_bubble) {
          ParallelPlan q = p;
          q.schedule = PipelineSchedule::zero_bubble;
          look(q);
        }
        ++out.bounds;
        child.bound = std::max(child.bound, least);
        out.children.push_back(child);
      }
}

void SearchTree::expand_kernels(const Node& node, TreeCache& cache, Expansion& out) const {
  const std::uint64_t each = below(Level::pipeline);
  const std::uint64_t members = node.members / below(Level::kernels) * each;
  for (std::size_t f = 0; f < space_.form.size(); ++f) {
    for (std::size_t split = 0; split < space_.split.size(); ++split) {
      Node child = node;
      child.level = Level::pipeline;
      child.choice.form = static_cast<std::uint8_t>(f), child.choice.split = static_cast<std::uint8_t>(split);
      child.members = members;
      ParallelPlan p = plan(child.choice, cache);
      const ParallelPlan kept = neutral();
      p.zero_stage = 0, p.shard_degree = 0, p.optimizer_offload = 0, p.parameter_offload = false;
      p.activation_offload = 0, p.offload_horizon = 1, p.bucket_elements = 0, p.last_bucket_split = 1;
      p.overlap_grad_reduce = kept.overlap_grad_reduce, p.overlap_param_gather = kept.overlap_param_gather;
      if (!lawful(p, members, out)) continue;
      // The same layers on the same stages, or the same recomputation, as an earlier member.
      const auto ranges = layer_ranges(p, job_.model.n_layers);
      int longest = 0;
      for (const LayerRange& range : ranges) longest = std::max(longest, range.count);
      const bool same_split =
          space_.split[split] == StageSplit::balanced && p.chunks.empty() &&
          std::find(space_.split.begin(), space_.split.begin() + static_cast<std::ptrdiff_t>(split),
                    StageSplit::even) != space_.split.begin() + static_cast<std::ptrdiff_t>(split);
      const auto r = space_.recompute.begin() + node.choice.recompute;
      const bool same_recompute =
          p.recompute.kind == RecomputeKind::full && p.recompute.layers >= longest &&
          space_.split[split] == StageSplit::even &&
          std::find(space_.recompute.begin(), r, Recompute{RecomputeKind::full, -1}) != r;
      if (same_split || same_recompute) {
        out.fates[Fate::repeated] += members;
        continue;
      }
      const int m = microbatches(p, job_.training);
      const PipelineTimes times = pipeline_times(p, job_.model, job_.stack, m, cache.layers(p));
      ++out.bounds;
      child.bound =
          std::max(child.bound, closed_bound(times, {}, closing_time(job_, cache.links(TreeCache::core(p)))));
      out.children.push_back(child);
    }
  }
}

// The least memory that any member below can have. Communication buffers may grow with a higher ZeRO stage, and
// offloaded activations come back through a ring: neither is counted while open.
bool SearchTree::fits(const Node& node, ParallelPlan leanest, TreeCache&, Expansion& out) const {
  const bool offload = std::any_of(space_.activation_offload.begin(), space_.activation_offload.end(),
                                   [](const ActivationOffload& a) { return a.layers > 0; }) &&
                       job_.stack.can.activation_offload;
  if (node.level == Level::pipeline) {
    leanest.zero_stage = 0;
    for (const int z : space_.zero_stage)
      if (std::find(job_.stack.can.zero_stages.begin(), job_.stack.can.zero_stages.end(), z) !=
              job_.stack.can.zero_stages.end() &&
          (leanest.pp == 1 || z <= job_.stack.can.max_zero_with_pp))
        leanest.zero_stage = std::max(leanest.zero_stage, z);
    leanest.shard_degree = 0;
    leanest.optimizer_offload = 0;
    if (job_.stack.can.optimizer_offload)
      leanest.optimizer_offload =
          *std::max_element(space_.optimizer_offload.begin(), space_.optimizer_offload.end());
    leanest.parameter_offload =
        job_.stack.can.parameter_offload &&
        *std::max_element(space_.parameter_offload.begin(), space_.parameter_offload.end());
    leanest.activation_offload = 0;
  }
  leanest.overlap_grad_reduce = leanest.overlap_param_gather = false;
  leanest.bucket_elements = 0, leanest.last_bucket_split = 1;
  const MemoryEstimate estimate = estimate_memory(job_.model, job_.training, leanest, job_.stack);
  for (std::size_t s = 0; s < estimate.stages.size(); ++s) {
    const StageMemory& stage = estimate.stages[s];
    const auto held = [&](BufferKind kind) { return stage.at_peak[static_cast<std::size_t>(kind)]; };
    std::int64_t bytes =
        held(BufferKind::parameter) + held(BufferKind::gradient) + held(BufferKind::optimizer_state);
    if (node.level == Level::state || !offload)
      bytes += held(BufferKind::activation) + held(BufferKind::logits) + held(BufferKind::workspace);
    bytes = static_cast<std::int64_t>(0.999 * static_cast<double>(bytes) * job_.stack.memory.fragmentation) +
            stage.outside.v;
    if (bytes <= memory_limit_.v) continue;
    out.fates[Fate::out_of_memory] += node.members;
    if (out.examples.size() < 8) {
      const auto largest =
          std::max_element(stage.at_peak.begin(), stage.at_peak.end()) - stage.at_peak.begin();
      out.examples.push_back(
          {Fate::out_of_memory, plan_key(leanest),
           fmt::format("needs at least {:.1f} of {:.1f} GiB (most of it {} of stage {})", gib(Bytes(bytes)),
                       gib(memory_limit_), name(static_cast<BufferKind>(largest)), s)});
    }
    return false;
  }
  return true;
}

void SearchTree::expand_pipeline(const Node& node, TreeCache& cache, Expansion& out) const {
  const std::uint64_t each = below(Level::state);
  ParallelPlan p = plan(node.choice, cache);
  if (!fits(node, p, cache, out)) return;
  const auto ranges = layer_ranges(p, job_.model.n_layers);
  const auto& group = [&]() -> const std::vector<std::uint8_t>& {
    for (const auto& members : cache.classes(p).members)
      if (members.front() == node.choice.axis_order) return members;
    return cache.classes(p).members.front();
  }();
  const std::uint64_t orders = group.size(), oo_n = space_.optimizer_offload.size(),
                      po_n = space_.parameter_offload.size(), ao_n = space_.activation_offload.size();
  const int m = microbatches(p, job_.training);
  const double closing = closing_time(job_, cache.links(TreeCache::core(p)));
  p.overlap_grad_reduce = p.overlap_param_gather = false;
  p.bucket_elements = 0, p.last_bucket_split = 1;
  Node child = node;
  child.level = Level::state;
  bool seen_unsharded = false;  // a member that shards nothing
  for (std::size_t z = 0; z < space_.zero_stage.size(); ++z) {
    bool seen_all = false, seen_one = false;
    for (std::size_t sd = 0; sd < space_.shard_degree.size(); ++sd) {
      p.zero_stage = space_.zero_stage[z], p.shard_degree = space_.shard_degree[sd];
      p.optimizer_offload = 0, p.parameter_offload = false, p.activation_offload = 0, p.offload_horizon = 1;
      child.choice.zero_stage = static_cast<std::uint8_t>(z),
      child.choice.shard_degree = static_cast<std::uint8_t>(sd);
      const std::uint64_t here = orders * oo_n * po_n * ao_n * each;
      if (!lawful(p, here, out)) continue;
      if (!space_.limits.admits(PlanField::shard_degree, p.shards())) {
        out.fates[Fate::outside_limits] += here;
        continue;
      }
      // All replicas may be named or left open; a state that is not sharded is the same with ZeRO 0 and 1.
      bool& seen = p.shards() == p.replicas() ? seen_all : seen_one;
      const bool ends = p.shards() == p.replicas() || p.shards() == 1;
      const bool unsharded = p.shards() == 1 && p.zero_stage <= 1;
      if ((ends && seen) || (unsharded && seen_unsharded)) {
        out.fates[Fate::repeated] += here;
        continue;
      }
      if (ends) seen = true;
      if (unsharded) seen_unsharded = true;
      for (std::size_t oo = 0; oo < oo_n; ++oo) {
        p.optimizer_offload = space_.optimizer_offload[oo];
        p.parameter_offload = false, p.activation_offload = 0;
        if (!lawful(p, orders * po_n * ao_n * each, out)) continue;
        for (std::size_t po = 0; po < po_n; ++po) {
          p.parameter_offload = space_.parameter_offload[po] != 0;
          p.activation_offload = 0, p.offload_horizon = 1;
          if (!lawful(p, orders * ao_n * each, out)) continue;
          bool seen_no_offload = false;
          for (std::size_t ao = 0; ao < ao_n; ++ao) {
            p.activation_offload = space_.activation_offload[ao].layers;
            p.offload_horizon = space_.activation_offload[ao].horizon;
            if (!lawful(p, orders * each, out)) continue;
            if (p.activation_offload == 0 && seen_no_offload) {
              out.fates[Fate::repeated] += orders * each;
              continue;
            }
            if (p.activation_offload == 0) seen_no_offload = true;
            child.choice.optimizer_offload = static_cast<std::uint8_t>(oo);
            child.choice.parameter_offload = static_cast<std::uint8_t>(po);
            child.choice.activation_offload = static_cast<std::uint8_t>(ao);
            const PipelineTimes times = pipeline_times(p, job_.model, job_.stack, m, cache.layers(p));
            for (std::size_t i = 0; i < group.size(); ++i) {
              p.axis_order = space_.axis_order[group[i]];
              const PlanLinks& mine = cache.links(p);
              bool repeated = false;
              for (std::size_t j = 0; j < i && !repeated; ++j) {
                ParallelPlan earlier = p;
                earlier.axis_order = space_.axis_order[group[j]];
                repeated = same_links(cache.links(earlier), mine);
              }
              if (repeated) {
                out.fates[Fate::repeated] += each;
                continue;
              }
              // The least that state adds, whatever the buckets and overlaps: one bucket, reductions beside compute.
              ParallelPlan relaxed = p;
              relaxed.overlap_param_gather = true;
              std::vector<StateTimes> state = cache.state(relaxed, ranges);
              for (StateTimes& t : state) {
                t.lane_total = std::max(t.lane_total, m * t.per_backward);
                t.per_forward = t.per_backward = t.on_compute = t.on_compute_last = t.last_beside =
                    t.beside_total = 0;
                t.beside.clear();
                t.ready.clear();
              }
              ++out.bounds;
              child.choice.axis_order = group[i];
              child.members = each;
              child.bound = std::max(node.bound, closed_bound(times, state, closing));
              out.children.push_back(child);
            }
            p.axis_order = space_.axis_order[group.front()];
          }
        }
      }
    }
  }
}

void SearchTree::expand_state(const Node& node, TreeCache& cache, Expansion& out) const {
  ParallelPlan p = plan(node.choice, cache);
  if (!fits(node, p, cache, out)) return;
  const auto ranges = layer_ranges(p, job_.model.n_layers);
  const int m = microbatches(p, job_.training);
  const PipelineTimes times = pipeline_times(p, job_.model, job_.stack, m, cache.layers(p));
  const double closing = closing_time(job_, cache.links(p));
  const bool units = p.zero_stage >= 3 || p.parameter_offload;
  const bool gathers = p.shards() > 1 || (p.zero_stage >= 3 && !p.parameter_offload);
  const StackRules& rules = job_.stack.rules;
  std::set<std::tuple<std::int64_t, int, bool, bool>> seen;
  Node child = node;
  child.level = Level::full;
  child.members = 1;
  for (std::size_t gr = 0; gr < space_.overlap_grad_reduce.size(); ++gr)
    for (std::size_t pg = 0; pg < space_.overlap_param_gather.size(); ++pg)
      for (std::size_t b = 0; b < space_.bucket_elements.size(); ++b)
        for (std::size_t lb = 0; lb < space_.last_bucket_split.size(); ++lb) {
          p.overlap_grad_reduce = space_.overlap_grad_reduce[gr] != 0;
          p.overlap_param_gather = space_.overlap_param_gather[pg] != 0;
          p.bucket_elements = space_.bucket_elements[b];
          p.last_bucket_split = space_.last_bucket_split[lb];
          if (!lawful(p, 1, out)) continue;
          const std::int64_t limit =
              units || !p.overlap_grad_reduce ? 0
              : p.bucket_elements > 0
                  ? p.bucket_elements
                  : std::max(rules.bucket_elements, rules.bucket_elements_per_replica * p.replicas());
          const bool reduces_matter = !units || p.replicas() > 1;
          if (!seen.insert({limit, units ? 1 : p.last_bucket_split, reduces_matter && p.overlap_grad_reduce,
                            gathers && p.overlap_param_gather})
                   .second) {
            ++out.fates[Fate::repeated];
            continue;
          }
          ++out.bounds;
          child.choice.overlap_grad_reduce = static_cast<std::uint8_t>(gr);
          child.choice.overlap_param_gather = static_cast<std::uint8_t>(pg);
          child.choice.bucket_elements = static_cast<std::uint8_t>(b);
          child.choice.last_bucket_split = static_cast<std::uint8_t>(lb);
          child.bound = std::max(node.bound, closed_bound(times, cache.state(p, ranges), closing));
          out.children.push_back(child);
        }
}

void SearchTree::refine(Node& node, TreeCache& cache, Expansion& out) const {
  const ParallelPlan p = plan(node.choice, cache);
  node.refined = 1;
  const PlanMemory memory = plan_memory(job_, p);
  if (memory.peak > memory_limit_) {
    out.fates[Fate::out_of_memory] += node.members;
    if (out.examples.size() < 8)
      out.examples.push_back(
          {Fate::out_of_memory, plan_key(p),
           fmt::format("needs {:.1f} of {:.1f} GiB (most of it {} of stage {})", gib(memory.peak),
                       gib(memory_limit_), memory.largest, memory.stage)});
    node.members = 0;
    return;
  }
  const int m = microbatches(p, job_.training);
  const PipelineTimes times = pipeline_times(p, job_.model, job_.stack, m, cache.layers(p));
  ++out.bounds;
  node.bound = std::max(node.bound, slot_bound(times, cache.state(p, layer_ranges(p, job_.model.n_layers)),
                                               closing_time(job_, cache.links(p)), cache.order(p, m)));
}

}  // namespace sextant
