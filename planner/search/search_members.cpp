// One node or member of the space at a time: a tighter bound, and whether it fits.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "planner/lowering/graph_size.hpp"
#include "planner/search/search_tree.hpp"

namespace sextant {
void SearchTree::refine(Node& node, SearchCache& cache, Expansion& out) const {
  ParallelPlan p = decided(node.choice, node.level, cache);
  ++node.refined;
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  if (lowered_ && !still_fits(node, p, chunks, out)) {
    node.members = 0;
    return;
  }
  const int m = microbatches(p, job_.training);
  const int chunks_id = cache.chunks_id(chunks);
  const bool is_all_steady = node.level == Level::pipeline ? steady(p) : is_steady(p, job_.stack.rules);
  ++out.bounds;
  cache.states.clear();
  Start start = Start::known;
  pipeline_times(p, chunks, job_.stack, m, cache.layers(p), is_all_steady, cache.times);
  const auto tighten = [&](double closing) {
    node.bound =
        std::max(node.bound, slot_bound(cache.times, cache.states, closing,
                                        cache.few_steps(p, m, cache.times), cache.slots, out.limit, start));
  };
  // Without a look at buckets first: many end here.
  const auto ends_at_least = [&](const ParallelPlan& of, Start known) {
    const StageStates least = least_state_times(job_, of, cache.links(p), chunks, known);
    cache.states.push_back(&least);
    tighten(cache.closing(p));
    cache.states.clear();
    return node.bound > out.limit;
  };
  switch (node.level) {
    case Level::pipeline:
      // The exchange of a tied embedding comes behind all slots, but not behind all reductions.
      if (cache.stateless_closing(p) > cache.closing(p)) tighten(cache.stateless_closing(p));
      if (node.bound > out.limit || ends_at_least(p, Start::open)) return;
      start = list_fitting_states(p, chunks, cache);
      break;
    case Level::offload: {
      ParallelPlan furthest = p;  // holds up no more, and was asked for before
      if (p.parameter_offload) furthest.offload_horizon = most_horizon_;
      if (ends_at_least(furthest, Start::known)) return;
      list_states(furthest, bucketings(p, cache), chunks_id, cache);
      break;
    }
    default:
      cache.states.push_back(&cache.state(p, chunks_id));
  }
  if (!cache.states.empty()) tighten(cache.closing(p));
}

std::optional<Node> SearchTree::member(Choice c, double limit, SearchCache& cache) const {
  if (space_.world % (std::int64_t{space_.tp[c.tp]} * space_.cp[c.cp] * space_.pp[c.pp]) != 0)
    return std::nullopt;
  ParallelPlan p = plan(c, cache);
  if (const auto none = std::ranges::find(space_.zero_stage, 0);
      p.shards() == 1 && p.zero_stage == 1 && none != space_.zero_stage.end() && shards_one_alike(p)) {
    c.zero_stage = small(static_cast<std::size_t>(none - space_.zero_stage.begin()));
    p = plan(c, cache);
  }
  const auto least = bound(p, limit, cache);
  if (!least) return std::nullopt;
  Node node;
  node.level = Level::full;
  node.choice = c;
  node.refined = 1;
  node.bound = *least;
  return node;
}

double SearchTree::quickest(const ParallelPlan& p, SearchCache& cache) const {
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  const int m = microbatches(p, job_.training);
  if (m == 0 || (p.chunks.empty() && p.pp * p.vp > job_.model.n_layers)) return INFINITY;
  pipeline_times(p, chunks, job_.stack, m, cache.layers(p), is_steady(p, job_.stack.rules), cache.times);
  return closed_bound(cache.times, {}, cache.stateless_closing(p));
}

std::optional<Choice> SearchTree::with_least_share(Choice c, SearchCache& cache) const {
  if (space_.world % (std::int64_t{space_.tp[c.tp]} * space_.cp[c.cp] * space_.pp[c.pp]) != 0)
    return std::nullopt;
  const std::vector<double>& shares = cache.shares();
  ParallelPlan p = plan(c, cache);
  if (has_too_many_passes(job_.model, microbatches(p, job_.training))) return std::nullopt;
  const auto too_large = [&](double share) {
    p.optimizer_offload = share;
    return unlawful_reason(job_, p) || !fits(p);
  };
  if (shares.empty()) return std::nullopt;
  const auto fitting = !too_large(shares.front())
                           ? shares.begin()
                           : std::partition_point(shares.begin() + 1, shares.end(), too_large);
  if (fitting == shares.end()) return std::nullopt;
  c.optimizer_offload = small(static_cast<std::size_t>(std::ranges::find(space_.optimizer_offload, *fitting) -
                                                       space_.optimizer_offload.begin()));
  return c;
}

std::optional<double> SearchTree::bound(const ParallelPlan& p, double limit, SearchCache& cache) const {
  if (unlawful_reason(job_, p) || space_.idle_horizon(p) || !space_.limits.admits(p)) return std::nullopt;
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  Expansion ignored;
  if (!flight_fits(flight(p, chunks), p, state_of_element(p), 1, ignored)) return std::nullopt;
  const int m = microbatches(p, job_.training);
  if (has_too_many_passes(job_.model, m)) return std::nullopt;
  const double closing = cache.closing(p);
  pipeline_times(p, chunks, job_.stack, m, cache.layers(p), is_steady(p, job_.stack.rules), cache.times);
  if (closed_bound(cache.times, {}, cache.stateless_closing(p)) > limit) return std::nullopt;
  const StageStates* state = &cache.state(p, cache.chunks_id(chunks));
  const double least = std::max(closed_bound(cache.times, *state, closing),
                                slot_bound(cache.times, std::span(&state, 1), closing,
                                           cache.few_steps(p, m, cache.times), cache.slots, limit));
  return least > limit ? std::nullopt : std::optional(least);
}

bool SearchTree::fits(const ParallelPlan& plan) const {
  const PlanMemory memory = plan_memory(job_, plan);
  return memory.peak <= memory_limit_ && memory.host_of_node <= job_.cluster.node.host_memory;
}

bool SearchTree::fits(Node& node, SearchCache& cache, Expansion& out) const {
  const ParallelPlan p = decided(node.choice, Level::full, cache);
  const PlanMemory memory = plan_memory(job_, p);
  node.peak = memory.peak.v;
  const bool on_host = memory.host_of_node <= job_.cluster.node.host_memory;
  if (memory.peak <= memory_limit_ && on_host) return true;
  reject(
      Outcome::out_of_memory, node.members, p,
      [&] {
        if (!on_host) return too_large(job_, memory)->text;
        return fmt::format("needs {:.1f} GiB, has {:.1f} GiB (most of it {} of stage {})", gib(memory.peak),
                           gib(memory_limit_), memory.largest, memory.stage);
      },
      out);
  return false;
}

}  // namespace sextant
