#include "planner/search/search_cache.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>

#include "core/graph/parameter_layout.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {
namespace {

int axes_code(const AxisOrder& order) {
  int code = 0;
  for (const Axis axis : order) code = 4 * code + static_cast<int>(axis);
  return code;
}

// Numbers that are not negative, each in so many bits, at most 64 together.
struct Bits {
  int value, bits;
};
std::uint64_t packed(std::initializer_list<Bits> numbers) {
  std::uint64_t out = 0;
  for (const Bits& n : numbers) out = out << n.bits | static_cast<std::uint64_t>(n.value);
  return out;
}

// Axes of extent 1 stand nowhere.
int placed_axes_code(const ParallelPlan& p) {
  int code = 0;
  for (const Axis axis : p.axis_order) {
    const int extent = axis == Axis::tp ? p.tp : axis == Axis::cp ? p.cp : axis == Axis::dp ? p.dp : p.pp;
    if (extent > 1) code = 8 * code + static_cast<int>(axis) + 1;
  }
  return code;
}

}  // namespace

std::shared_ptr<SearchCache::Shared> SearchCache::make_shared() { return std::make_shared<Shared>(); }

SearchCache::SearchCache(const Job& job, const SearchSpace& space, std::shared_ptr<Shared> shared)
    : job_(job), space_(space), shared_(std::move(shared)), shares_(space.optimizer_offload) {
  std::ranges::sort(shares_);
}

const SearchCache::Linked& SearchCache::linked(const ParallelPlan& p, int shards) {
  const auto key_of = [&](const AxisOrder& order) {
    return Packed{packed({{p.tp, 21}, {p.cp, 21}, {p.pp, 21}}),
                  packed({{p.dp, 25}, {shards, 25}, {axes_code(order), 8}})};
  };
  const Packed key = key_of(p.axis_order);
  if (const Linked* recent = recent_.at(key)) return *recent;
  const Linked* found = nullptr;
  if (shards > 1) {
    found = &of(shared_->links, key, [&] {
      Linked made = linked(p, 1);
      made.links = plan_links(job_.topology, p, std::move(made.links));
      return made;
    });
  } else {
    ParallelPlan placed = p;
    placed.zero_stage = placed.shard_degree = 0;
    placed.axis_order = job_.topology.plain_order(p);
    found = &of(shared_->links, key_of(placed.axis_order), [&] {
      Linked made;
      made.links = plan_links(job_.topology, placed);
      number(made, placed);
      made.closing = closing_time(job_, made.links);
      return made;
    });
  }
  return *(recent_.at(key) = found);
}

const BlockTimes& SearchCache::blocks(const ParallelPlan& p) {
  const bool split = p.schedule == PipelineSchedule::zero_bubble;
  const Packed key{packed({{p.tp, 21}, {p.cp, 21}}), packed({{p.micro_batch, 31},
                                                             {p.sequence_parallel, 1},
                                                             {static_cast<int>(p.recompute.kind), 2},
                                                             {split, 1}})};
  return of(recent_blocks_, shared_->blocks, key, [&] { return block_times(job_, p); });
}

// Made of parts, each of which many layouts share.
const StageLayerTimes& SearchCache::layers(const ParallelPlan& p) {
  const Linked& l = linked(p, 1);
  const BlockTimes& b = blocks(p);
  layers_.distinct.clear();
  layers_.uneven = false;
  // A split backward has the same links: the next to ask after its twin.
  const std::tuple asked{
      &l, p.micro_batch, p.sequence_parallel, p.overlap_tp, p.activation_offload > 0, p.recompute.kind};
  const bool known = asked == over_asked_;
  if (!known) {
    over_asked_ = asked;
    over_.clear();
  }
  for (std::size_t i = 0; i < l.distinct.size(); ++i) {
    const auto stage = std::find(l.index.begin(), l.index.end(), i) - l.index.begin();
    const StageLinks& links = l.links.of(l.index.empty() ? 0 : static_cast<int>(stage));
    const StageKind& kind = l.distinct[i];
    if (!known) over_.push_back(times_over(kind.links, p, links));
    const LinkTimes& over = over_[i];
    layers_.uneven = layers_.uneven || kind.factor != l.distinct.front().factor;
    layers_.distinct.push_back(kind.factor == 1 ? layer_times(p, b, over, job_.stack)
                                                : layer_times(p, b.slower(kind.factor), over, job_.stack));
  }
  layers_.index = l.index;
  return layers_;
}

const StageLayerTimes& SearchCache::layers_without_links(const ParallelPlan& p) {
  layers_.distinct.clear();
  layers_.index.clear();
  layers_.uneven = false;
  layers_.distinct.push_back(layer_times(p, blocks(p), {}, job_.stack));
  return layers_;
}

LinkTimes SearchCache::times_over(const LinkIds& ids, const ParallelPlan& p, const StageLinks& links) {
  const std::uint64_t degrees = packed({{p.tp, 21}, {p.cp, 21}});
  const int sp = p.sequence_parallel, again = static_cast<int>(p.recompute.kind);
  const auto part = [&](LinkPart wanted, int id, int with_sp, int tiled, int recompute) -> const LinkTimes& {
    const Packed key{degrees, packed({{p.micro_batch, 31},
                                      {static_cast<int>(wanted), 3},
                                      {id, 26},
                                      {with_sp, 1},
                                      {tiled, 1},
                                      {recompute, 2}})};
    return of(recent_links_, shared_->link_times, key, [&] { return link_times(job_, p, links, wanted); });
  };
  LinkTimes t;
  if (p.tp > 1) {
    const LinkTimes& x = part(LinkPart::tp, ids[0], sp, p.overlap_tp, 0);
    t.tp_gather = x.tp_gather;
    t.tp_leave = x.tp_leave;
    t.loss_gather = x.loss_gather;
  }
  if (p.cp > 1) {
    const LinkTimes& x = part(LinkPart::cp, ids[1], 0, 0, again);
    t.cp_gather = x.cp_gather;
    t.cp_gather_backward = x.cp_gather_backward;
    t.cp_scatter = x.cp_scatter;
  }
  if (p.pp > 1) t.send = part(LinkPart::next, ids[2], sp, 0, 0).send;
  if (p.activation_offload > 0) {
    const LinkTimes& x = part(LinkPart::copies, 0, sp, 0, again);
    t.copy_out = x.copy_out;
    t.copy_in = x.copy_in;
  }
  return t;
}

const StageStates& SearchCache::state(const ParallelPlan& p, int chunks_of_plan, Share share) {
  // What is fetched or reduced for every micro-batch is counted over all of them.
  const bool every = p.zero_stage >= 2 || p.parameter_offload;
  // Modules are fetched once more for a repeated forward.
  const StackRules& rules = job_.stack.rules;
  const bool repeats =
      rules.fetch_modules && fetches_parameters(p, rules) && p.recompute.kind == RecomputeKind::full;
  const int again = !repeats ? 0 : p.recompute.layers < 0 ? job_.model.n_layers : p.recompute.layers;
  const int on_host = static_cast<int>(1e6 * p.optimizer_offload);
  const Key key{p.tp,
                p.cp,
                p.pp,
                p.vp,
                axes_code(p.axis_order),
                p.shards(),
                p.zero_stage | (p.sequence_parallel ? 4 : 0) | (p.parameter_offload ? 8 : 0) |
                    (p.schedule == PipelineSchedule::zero_bubble ? 16 : 0),
                share == Share::any ? -1 - on_host : on_host,
                every ? microbatches(p, job_.training) : 0,
                chunks_of_plan,
                p.parameter_offload ? p.offload_horizon : 0,
                again};
  if (!last_states_ || key != last_state_key_) {
    last_state_key_ = key;
    last_states_ = &shared_->states[key];
  }
  const Bucketing wanted{p.bucket_elements, p.last_bucket_split, p.overlap_grad_reduce,
                         p.overlap_param_gather};
  StatesByBuckets& kept = *last_states_;
  const auto made = [&]() -> const StageStates* {
    for (const auto& [bucketing, state] : kept.made)
      if (bucketing == wanted) return &state;
    return nullptr;
  };
  {
    const std::lock_guard lock(kept.adding);
    if (const StageStates* found = made()) return *found;
  }
  StageStates state = state_of(p, chunks_of_plan, share);
  const std::lock_guard lock(kept.adding);
  if (const StageStates* found = made()) return *found;
  shared_->state_bytes += state.bytes();
  return kept.made.emplace_front(wanted, std::move(state)).second;
}

StageStates SearchCache::state_of(const ParallelPlan& p, int chunks_of_plan, Share share) {
  const bool units = buckets_are_units(p, job_.stack.rules);
  const std::int64_t bucket = bucket_limit(p, job_.stack.rules) > 0 ? p.bucket_elements : 0;
  const Key of_buckets{p.tp,
                       p.pp,
                       p.vp,
                       p.shards(),
                       p.replicas(),
                       p.zero_stage,
                       units,
                       p.overlap_grad_reduce,
                       static_cast<int>(bucket >> 31),
                       static_cast<int>(bucket & 0x7fffffff),
                       p.last_bucket_split,
                       p.schedule == PipelineSchedule::zero_bubble,
                       chunks_of_plan};
  return state_times(job_, p, links(p),
                     of(shared_->buckets, of_buckets, [&] { return stage_buckets(job_, p); }), state_scratch,
                     share == Share::any
                         ? std::span(std::ranges::lower_bound(shares_, p.optimizer_offload), shares_.end())
                         : std::span<const double>());
}

double SearchCache::stateless_closing(const ParallelPlan& p) {
  const Linked& l = linked(p, 1);
  // Weight halves may stand behind the exchange.
  if (!job_.model.tied_embeddings || p.pp == 1 || p.schedule == PipelineSchedule::zero_bubble)
    return l.closing;
  const bool sliced = reduces_every_microbatch(p, job_.stack.rules);
  const Key key{p.tp, p.cp, p.pp, p.dp, axes_code(p.axis_order), sliced ? p.shards() : 1};
  return l.closing + of(shared_->tied_reductions, key, [&] { return tied_reduction_time(job_, p, l.links); });
}

const SearchCache::EveryMicrobatch& SearchCache::every_microbatch(const ParallelPlan& p) {
  static const EveryMicrobatch kNone;
  if (p.zero_stage < 2 || p.shards() == 1) return kNone;
  const Key key{p.tp, p.cp, p.pp, p.dp, axes_code(p.axis_order), p.shards(), p.zero_stage};
  return of(shared_->every, key, [&] { return every_of(p); });
}

SearchCache::EveryMicrobatch SearchCache::every_of(const ParallelPlan& p) {
  EveryMicrobatch every;
  const StackRules& rules = job_.stack.rules;
  const bool parameters = p.zero_stage >= 3 && rules.zero3_regather_in_backward,
             gradients = reduces_every_microbatch(p.zero_stage, p.pp, rules);
  if (p.shards() == 1 || (!parameters && !gradients)) return every;
  // Layer by layer with ZeRO 3; otherwise in buckets, which take at least as long as one of all.
  const double layers = static_cast<double>(job_.model.n_layers) / p.pp;
  const std::int64_t layer = parameter_counts(job_.model).layer() / p.tp;
  const bool units = p.zero_stage >= 3;
  const double pieces = units ? layers : 1.0;
  const auto elements = units ? layer : static_cast<std::int64_t>(layers * static_cast<double>(layer));
  double gather = INFINITY, reduce = INFINITY;
  std::vector<Topology::ShardGroups> groups;  // of the stages that differ
  if (p.shards() == p.replicas()) {
    for (const StageLinks& stage : linked(p, 1).links.stages) groups.push_back({stage.shard, {}});
  } else {
    const RankGrid grid(p);
    for (int stage = 0; stage < job_.topology.stage_period(grid); ++stage)
      groups.push_back(job_.topology.shard_groups(grid, stage, p.shards()));
  }
  for (const auto& [shard, replica] : groups) {
    const auto price = [&](CollectiveKind kind, std::int64_t n, Dtype dtype, const GroupShape& group) {
      return job_.cost.price(CollectiveWork{kind, Bytes(n * size_bytes(dtype)), group}).duration.v;
    };
    gather = std::min(gather, price(CollectiveKind::all_gather, elements, job_.training.parameter, shard));
    double both = price(CollectiveKind::reduce_scatter, elements, job_.training.reduction, shard);
    if (replica.size > 1)
      both += price(CollectiveKind::all_reduce, elements / p.shards(), job_.training.reduction, replica);
    reduce = std::min(reduce, both);
  }
  if (parameters) every.fetched = 2 * pieces * gather;  // forward and backward
  if (gradients) every.reduced = pieces * reduce;
  return every;
}

template <class Make>
const SlotSteps& SearchCache::known_steps(std::unordered_map<Key, SlotSteps, KeyHash>& known,
                                          const ParallelPlan& p, int microbatches, const Make& make) {
  constexpr std::size_t kMostSlots = 4'000'000;
  const Key key{static_cast<int>(p.schedule), p.pp, p.vp, microbatches};
  if (slots_kept_ > kMostSlots && known.find(key) == known.end()) {
    steps_.clear();
    few_steps_.clear();
    slots_kept_ = 0;
  }
  SlotSteps& walk = known[key];
  if (walk.steps.empty()) {
    walk = make(p.schedule, p.pp, p.vp, microbatches);
    slots_kept_ += walk.steps.size();
  }
  return walk;
}

const SlotSteps& SearchCache::steps(const ParallelPlan& p, int microbatches) {
  return known_steps(steps_, p, microbatches, slot_steps);
}

const SlotSteps& SearchCache::few_steps(const ParallelPlan& p, int microbatches, const PipelineTimes& taken) {
  const SlotSteps& few = known_steps(few_steps_, p, microbatches, few_slot_steps);
  return may_walk_few(taken, few) ? few : steps(p, microbatches);
}

std::vector<SearchCache::Law>& SearchCache::laws(Asked about, const std::array<int, 3>& key,
                                                 std::size_t choices) {
  std::vector<Law>& known = laws_[Key{static_cast<int>(about), key[0], key[1], key[2]}];
  known.resize(choices);
  return known;
}

std::int64_t SearchCache::elements(int tp) {
  return of(shared_->elements, Key{tp}, [&] {
    ParallelPlan whole;
    whole.tp = tp;
    return parameter_layout(job_.model, whole, job_.stack.rules, 0).elements;
  });
}

const SearchCache::Classes& SearchCache::classes(const ParallelPlan& p) {
  return of(shared_->classes, Key{p.tp, p.cp, p.pp, p.dp}, [&] { return classes_of(p); });
}

SearchCache::Classes SearchCache::classes_of(const ParallelPlan& plan) {
  Classes classes;
  ParallelPlan p = plan;
  p.zero_stage = p.shard_degree = 0;
  std::vector<int> seen;
  std::vector<const Linked*> first;
  for (std::size_t i = 0; i < space_.axis_order.size(); ++i) {
    p.axis_order = space_.axis_order[i];
    if (!in_one_of(job_.stack.can.axis_orders, p)) {
      ++classes.refused;
      continue;
    }
    const int code = placed_axes_code(p);
    if (std::ranges::find(seen, code) != seen.end()) {
      ++classes.repeated;
      continue;
    }
    seen.push_back(code);
    const Linked& mine = linked(p, 1);
    const auto same =
        std::find_if(first.begin(), first.end(), [&](const Linked* l) { return l->same_core(mine); });
    const auto at = static_cast<std::size_t>(same - first.begin());
    if (same == first.end()) {
      first.push_back(&mine);
      classes.members.emplace_back();
    }
    classes.members[at].push_back(static_cast<std::uint8_t>(i));
  }
  return classes;
}

std::size_t SearchCache::ShapeHash::operator()(const GroupShape& g) const {
  std::uint64_t h = 0x9E3779B97F4A7C15ull;
  const auto mix = [&](std::uint64_t x) {
    h = (h ^ x) * 0xD6E8FEB86659FD93ull;
    h ^= h >> 32;
  };
  mix(static_cast<std::uint64_t>(g.size) << 32 | static_cast<std::uint32_t>(g.nodes));
  mix(static_cast<std::uint32_t>(g.ranks_per_node));
  for (const double x : {g.node_bandwidth.v, g.network_bandwidth.v}) mix(std::bit_cast<std::uint64_t>(x));
  return h;
}

// Equal links of different layouts and stages get one number, by which times are remembered.
void SearchCache::number(Linked& l, const ParallelPlan& p) {
  std::vector<LinkIds> ids;  // by entry of the links
  {
    const std::lock_guard lock(shared_->numbering);
    auto& shapes = shared_->shapes;
    const auto id = [&](const GroupShape& g) {
      return shapes.emplace(g, static_cast<int>(shapes.size())).first->second;
    };
    for (const StageLinks& s : l.links.stages) ids.push_back({id(s.tp), id(s.cp), id(s.next)});
  }
  const std::vector<double> factors = stage_compute_factors(job_, p);
  if (ids.size() == 1 && factors.empty()) {
    l.distinct.push_back({ids.front()});
    return;
  }
  for (int s = 0; s < p.pp; ++s) {
    const StageKind kind{ids[l.links.index(s)], factors.empty() ? 1.0 : factors[static_cast<std::size_t>(s)]};
    const auto found = std::find(l.distinct.begin(), l.distinct.end(), kind);
    l.index.push_back(static_cast<std::uint16_t>(found - l.distinct.begin()));
    if (found == l.distinct.end()) l.distinct.push_back(kind);
  }
  if (l.distinct.size() == 1) l.index.clear();
}

int SearchCache::chunks_id(const std::vector<LayerRange>& list) {
  std::vector<int> counts = layer_counts(list);
  const std::lock_guard lock(shared_->numbering);
  auto& ids = shared_->chunk_ids;
  return ids.emplace(std::move(counts), static_cast<int>(ids.size())).first->second;
}

}  // namespace sextant
