#include "planner/search_cache.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/parameter_layout.hpp"

namespace sextant {
namespace {

int axes_code(const AxisOrder& order) {
  int code = 0;
  for (const Axis axis : order) code = 4 * code + static_cast<int>(axis);
  return code;
}

// Axes of extent 1 stand nowhere.
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

}  // namespace

std::shared_ptr<SearchCache::Shared> SearchCache::make_shared() { return std::make_shared<Shared>(); }

SearchCache::SearchCache(const Job& job, const SearchSpace& space, std::shared_ptr<Shared> shared)
    : job_(job), space_(space), shared_(std::move(shared)) {}

const SearchCache::Linked& SearchCache::linked(const ParallelPlan& p, int shards) {
  return of(shared_->links, Key{p.tp, p.cp, p.pp, p.dp, axes_code(p.axis_order), shards}, [&] {
    Linked made;
    if (shards > 1) {
      made = linked(p, 1);
      made.links = plan_links(job_.topology, p, std::move(made.links));
      return made;
    }
    ParallelPlan placed = p;
    placed.zero_stage = placed.shard_degree = 0;
    made.links = plan_links(job_.topology, placed);
    made.core = core_id(made.links);
    made.closing = closing_time(job_, made.links);
    return made;
  });
}

const BlockTimes& SearchCache::blocks(const ParallelPlan& p) {
  const bool split = p.schedule == PipelineSchedule::zero_bubble;
  const Key key{p.tp, p.cp, p.micro_batch, p.sequence_parallel, static_cast<int>(p.recompute.kind), split};
  return of(shared_->blocks, key, [&] { return block_times(job_, p); });
}

const std::vector<LayerTimes>& SearchCache::layers(const ParallelPlan& p) {
  const Linked& l = linked(p, 1);
  const bool split = p.schedule == PipelineSchedule::zero_bubble;
  const Key key{
      p.tp,  p.cp,   p.micro_batch, p.sequence_parallel,     p.overlap_tp, static_cast<int>(p.recompute.kind),
      split, l.core, p.pp > 1,      p.activation_offload > 0};
  return of(shared_->layers, key, [&] {
    std::vector<LayerTimes> made;
    for (const StageLinks& stage : l.links.stages) made.push_back(layer_times(job_, p, blocks(p), &stage));
    return made;
  });
}

const LayerTimes& SearchCache::layer_without_links(const ParallelPlan& p) {
  const bool split = p.schedule == PipelineSchedule::zero_bubble;
  const Key key{p.tp, p.cp, p.micro_batch, p.sequence_parallel, static_cast<int>(p.recompute.kind), split};
  return of(shared_->unlinked, key, [&] { return layer_times(job_, p, blocks(p), nullptr); });
}

const std::vector<StateTimes>& SearchCache::state(const ParallelPlan& p, int chunks_of_plan) {
  // What is fetched or reduced for every micro-batch is counted over all of them.
  const bool every = p.zero_stage >= 2 || p.parameter_offload;
  const Key key{p.tp,
                p.cp,
                p.pp,
                p.vp,
                axes_code(p.axis_order),
                p.shards(),
                p.zero_stage | (p.sequence_parallel ? 4 : 0) | (p.parameter_offload ? 8 : 0) |
                    (p.overlap_grad_reduce ? 16 : 0) | (p.overlap_param_gather ? 32 : 0),
                static_cast<int>(1e6 * p.optimizer_offload),
                static_cast<int>(p.bucket_elements >> 31),
                static_cast<int>(p.bucket_elements & 0x7fffffff),
                p.last_bucket_split,
                every ? microbatches(p, job_.training) : 0,
                chunks_of_plan};
  return of(shared_->state, key, [&] { return state_times(job_, p, links(p)); });
}

const SearchCache::EveryMicrobatch& SearchCache::every_microbatch(const ParallelPlan& p) {
  const Key key{p.tp, p.cp, p.pp, p.dp, axes_code(p.axis_order), p.shards(), p.zero_stage};
  return of(shared_->every, key, [&] { return every_of(p); });
}

SearchCache::EveryMicrobatch SearchCache::every_of(const ParallelPlan& p) {
  EveryMicrobatch every;
  const StackRules& rules = job_.stack.rules;
  const bool parameters = p.zero_stage >= 3 && rules.zero3_regather_in_backward,
             gradients = (p.zero_stage == 2 && rules.reduce_every_microbatch) ||
                         (p.zero_stage >= 3 && rules.zero3_reduce_every_microbatch);
  if (p.shards() == 1 || (!parameters && !gradients)) return every;
  // Layer by layer with ZeRO 3; otherwise in buckets, which take at least as long as one of all.
  const double layers = static_cast<double>(job_.model.n_layers) / p.pp;
  const std::int64_t layer = parameter_counts(job_.model).layer() / p.tp;
  const bool units = p.zero_stage >= 3;
  const double pieces = units ? layers : 1.0;
  const auto elements = units ? layer : static_cast<std::int64_t>(layers * static_cast<double>(layer));
  double gather = INFINITY, reduce = INFINITY;
  for (const StageLinks& stage : links(p).stages) {
    const auto price = [&](CollectiveKind kind, std::int64_t n, Dtype dtype, const GroupShape& group) {
      return job_.cost.price(CollectiveWork{kind, Bytes(n * size_bytes(dtype)), group, false}).duration.v;
    };
    gather =
        std::min(gather, price(CollectiveKind::all_gather, elements, job_.training.parameter, stage.shard));
    double both = price(CollectiveKind::reduce_scatter, elements, job_.training.reduction, stage.shard);
    if (stage.replica.size > 1)
      both +=
          price(CollectiveKind::all_reduce, elements / p.shards(), job_.training.reduction, stage.replica);
    reduce = std::min(reduce, both);
  }
  if (parameters) every.fetched = 2 * pieces * gather;  // forward and backward
  if (gradients) every.reduced = pieces * reduce;
  return every;
}

const std::vector<StageSlot>& SearchCache::order(const ParallelPlan& p, int microbatches) {
  constexpr std::size_t kMostSlots = 4'000'000;
  const Key key{static_cast<int>(p.schedule), p.pp, p.vp, microbatches};
  if (slots_kept_ > kMostSlots && orders_.find(key) == orders_.end()) orders_.clear(), slots_kept_ = 0;
  auto& slot = orders_[key];
  if (!slot) {
    slot = std::make_unique<std::vector<StageSlot>>(merged_order(p.schedule, p.pp, p.vp, microbatches));
    slots_kept_ += slot->size();
  }
  return *slot;
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
  std::set<std::vector<Axis>> seen;
  std::vector<const PlanLinks*> first;
  for (std::size_t i = 0; i < space_.axis_order.size(); ++i) {
    p.axis_order = space_.axis_order[i];
    if (!seen.insert(placed_axes(p)).second) {
      ++classes.repeated;
      continue;
    }
    const PlanLinks& mine = links(p);
    const auto same =
        std::find_if(first.begin(), first.end(), [&](const PlanLinks* l) { return same_core(*l, mine); });
    const auto at = static_cast<std::size_t>(same - first.begin());
    if (same == first.end()) first.push_back(&mine), classes.members.emplace_back();
    classes.members[at].push_back(static_cast<std::uint8_t>(i));
  }
  return classes;
}

int SearchCache::core_id(const PlanLinks& l) {
  std::vector<StageLinks> stages = l.stages;
  for (StageLinks& s : stages) s.shard = s.replica = GroupShape{};
  const std::lock_guard lock(shared_->numbering);
  auto& cores = shared_->cores;
  const auto found = std::find(cores.begin(), cores.end(), stages);
  if (found != cores.end()) return static_cast<int>(found - cores.begin());
  cores.push_back(std::move(stages));
  return static_cast<int>(cores.size() - 1);
}

int SearchCache::chunks_id(const std::vector<LayerRange>& list) {
  std::vector<int> counts;
  counts.reserve(list.size());
  for (const LayerRange& c : list) counts.push_back(c.count);
  const std::lock_guard lock(shared_->numbering);
  auto& ids = shared_->chunk_ids;
  return ids.emplace(std::move(counts), static_cast<int>(ids.size())).first->second;
}

}  // namespace sextant
