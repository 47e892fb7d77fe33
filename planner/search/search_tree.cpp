#include "planner/search/search_tree.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/search/stage_split.hpp"

namespace sextant {

// Whether rules and stack allow this sequence parallelism and TP overlap.
bool SearchTree::has_kernels(const ParallelPlan& p) const {
  const StackCapabilities& can = job_.stack.can;
  if (p.tp == 1) return !p.sequence_parallel && !p.overlap_tp;
  return (!p.sequence_parallel || can.sequence_parallel) && (!p.overlap_tp || may_overlap_tp(can, p));
}

SearchTree::SearchTree(const Job& job, const SearchSpace& space, Bytes memory_limit,
                       std::function<bool()> stopped)
    : job_(job), space_(space), memory_limit_(memory_limit), stopped_(std::move(stopped)) {
  const StackCapabilities& can = job.stack.can;
  const auto& ao = space.activation_offload;
  may_offload_activations_ =
      can.activation_offload &&
      std::any_of(ao.begin(), ao.end(), [](const ActivationOffload& a) { return a.layers > 0; });
  const auto& po = space.parameter_offload;
  may_offload_parameters_ = can.parameter_offload && std::find(po.begin(), po.end(), 1) != po.end();
  const auto& oo = space.optimizer_offload;
  most_optimizer_offload_ =
      can.optimizer_offload && !oo.empty() ? *std::max_element(oo.begin(), oo.end()) : 0.0;
  may_split_backward_ =
      can.zero_bubble && std::any_of(space.form.begin(), space.form.end(), [](const PipelineForm& f) {
        return f.schedule == PipelineSchedule::zero_bubble;
      });
  parameters_ = static_cast<double>(parameter_counts(job.model).total);
  most_chunks_ = most_chunks(space, can.uneven_stages, job.model.n_layers);
  cuts_ends_ = can.uneven_stages == UnevenStages::ends;
  cuts_evenly_ = can.uneven_stages == UnevenStages::none || can.uneven_stages == UnevenStages::any;
  for (const int pp : space.pp)
    for (const PipelineForm& form : space.form)
      if (pp > 1 && cuts_by_rule(can.uneven_stages, form.vp) && !ruled_.contains({pp, form.vp}))
        ruled_[{pp, form.vp}] = ruled_cuts(can.uneven_stages, pp, form.vp, job.model);
  most_vp_ = 1;
  for (const PipelineForm& form : space.form) most_vp_ = std::max(most_vp_, form.vp);
  least_horizon_ = most_horizon_ = ParallelPlan{}.offload_horizon;
  for (const ActivationOffload& a : ao) {
    least_offloaded_ = std::min(least_offloaded_, a.layers == ActivationOffload::all ? 0 : a.layers);
    if (a.layers > 0) least_horizon_ = std::min(least_horizon_, a.horizon);
    most_horizon_ = std::max(most_horizon_, a.horizon);
  }
}

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
      n *= s.zero_stage.size() * s.shard_degree.size();
      [[fallthrough]];
    case Level::sharding:
      n *= s.sequence_parallel.size() * s.overlap_tp.size() * s.recompute.size();
      [[fallthrough]];
    case Level::kernels:
      n *= s.form.size() * s.split.size();
      [[fallthrough]];
    case Level::pipeline:
      n *= s.activation_offload.size() * s.optimizer_offload.size() * s.parameter_offload.size();
      [[fallthrough]];
    case Level::offload:
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

bool SearchTree::lawful(const ParallelPlan& plan, std::uint64_t members, Expansion& out,
                        SearchCache::Law& law) const {
  if (lawful(plan, law)) return true;
  const Outcome outcome = *law.against == RejectReason::inconsistent           ? Outcome::inconsistent
                          : *law.against == RejectReason::unsupported_by_stack ? Outcome::unsupported_by_stack
                                                                               : Outcome::not_divisible;
  reject(
      outcome, members, plan, [&] { return unlawful(job_, plan).value().text; }, out);
  return false;
}

ParallelPlan SearchTree::plan(const Choice& choice, SearchCache& cache) const {
  return decided(choice, Level::full, cache);
}

ParallelPlan SearchTree::decided(const Choice& choice, Level level, SearchCache& cache) const {
  ParallelPlan p = plan_of(space_, choice);
  const ParallelPlan fresh;
  if (level < Level::full) {
    p.overlap_grad_reduce = p.overlap_param_gather = false;
    p.bucket_elements = 0;
    p.last_bucket_split = 1;
  }
  if (level < Level::offload) p = without_offload(std::move(p));
  if (level < Level::pipeline) {
    p.schedule = fresh.schedule;
    p.vp = 1;
  }
  if (level < Level::kernels) {
    p.sequence_parallel = p.overlap_tp = false;
    p.recompute = fresh.recompute;
  }
  if (level < Level::sharding) p.zero_stage = p.shard_degree = 0;
  if (level < Level::placement) {
    p.micro_batch = 1;
    p.axis_order = job_.stack.can.usual_order();
  }
  const StageSplit split = space_.split[choice.split];
  if (level >= Level::pipeline && (split == StageSplit::balanced || !cuts_evenly_)) {
    fill_chunks(p, split, cache, cache.chunks);
    fill_even(p, cache.even);
    if (cache.chunks != cache.even) p.chunks = cache.chunks;
  }
  if (level >= Level::offload && !p.chunks.empty())
    p.activation_offload =
        space_.activation_offload[choice.activation_offload].of_chunk(longest_chunk(p.chunks));
  return p;
}

ParallelPlan SearchTree::with_ends(ParallelPlan p) const {
  if (p.chunks.empty() && !can_cut(UnevenStages::ends, p, job_.model))
    p.chunks = chunks_of(ends_cut(job_.model.n_layers, p.pp, p.vp));
  return p;
}

// Where the ZeRO stage is not decided, the stack is asked about the lowest that it offers: some have no stage 0.
ParallelPlan SearchTree::with_some_stage(ParallelPlan p) const {
  p.zero_stage = lowest_zero_stage(job_.stack.can, p, job_.training.parameter);
  return p;
}

void SearchTree::expand(const Node& node, SearchCache& cache, Expansion& out) const {
  switch (node.level) {
    case Level::root:
      return expand_root(cache, out);
    case Level::degrees:
      return expand_degrees(node, cache, out);
    case Level::placement:
      return expand_placement(node, cache, out);
    case Level::sharding:
      return expand_sharding(node, cache, out);
    case Level::kernels:
      return expand_kernels(node, cache, out);
    case Level::pipeline:
      return expand_pipeline(node, cache, out);
    case Level::offload:
      return expand_offload(node, cache, out);
    case Level::full:
      break;
  }
}

}  // namespace sextant
