// One node or member of the space at a time: a tighter bound, whether it fits, and members worth simulating first.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "planner/search_tree.hpp"

namespace sextant {
namespace {

constexpr int kFetchedAhead = 4;  // units of parameters on the host, in a first guess

std::uint8_t small(std::size_t index) { return static_cast<std::uint8_t>(index); }

}  // namespace

void SearchTree::refine(Node& node, SearchCache& cache, Expansion& out) const {
  ParallelPlan p = decided(node.choice, node.level, cache);
  const bool with_states = node.level != Level::pipeline || node.refined > 0;
  ++node.refined;
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  if (lowered_ && !still_fits(node, p, chunks, out)) {
    node.members = 0;
    return;
  }
  const int m = microbatches(p, job_.training);
  const int chunks_id = cache.chunks_id(chunks);
  const bool is_all_steady = node.level == Level::pipeline ? steady(p) : is_steady(p, job_.stack.rules);
  const double closing = with_states ? cache.closing(p) : cache.stateless_closing(p);
  const std::vector<SlotStep>& steps = cache.steps(p, m);
  ++out.bounds;
  cache.states.clear();
  Start start = Start::known;
  if (node.level == Level::pipeline && with_states) {
    start = list_fitting_states(p, chunks, cache);
    if (cache.states.empty()) return;
  }
  if (node.level == Level::offload) list_states(p, bucketings(p), chunks_id, cache);
  if (node.level == Level::full) cache.states.push_back(&cache.state(p, chunks_id));
  pipeline_times(p, chunks, job_.stack, m, cache.layers(p), is_all_steady, cache.times);
  node.bound = std::max(node.bound,
                        slot_bound(cache.times, cache.states, closing, steps, cache.slots, out.limit, start));
}

std::optional<Node> SearchTree::member(Choice c, double limit, SearchCache& cache) const {
  if (space_.world % (std::int64_t{space_.tp[c.tp]} * space_.cp[c.cp] * space_.pp[c.pp]) != 0)
    return std::nullopt;
  ParallelPlan p = plan(c, cache);
  if (const auto none = std::ranges::find(space_.zero_stage, 0);
      p.shards() == 1 && p.zero_stage == 1 && none != space_.zero_stage.end()) {
    c.zero_stage = small(static_cast<std::size_t>(none - space_.zero_stage.begin()));
    p = plan(c, cache);
  }
  const auto least = bound(p, limit, cache);
  if (!least) return std::nullopt;
  Node node;
  node.level = Level::full, node.choice = c, node.refined = 1;
  node.bound = *least;
  return node;
}

std::optional<double> SearchTree::bound(const ParallelPlan& p, double limit, SearchCache& cache) const {
  if (unlawful_reason(job_, p) || idle_horizon(p) || !space_.limits.admits(p)) return std::nullopt;
  const std::vector<LayerRange> chunks = layer_ranges(p, job_.model.n_layers);
  Expansion ignored;
  if (!flight_fits(flight(p, chunks), p, state_of_element(p), 1, ignored)) return std::nullopt;
  const int m = microbatches(p, job_.training);
  const double closing = cache.closing(p);
  pipeline_times(p, chunks, job_.stack, m, cache.layers(p), is_steady(p, job_.stack.rules), cache.times);
  if (closed_bound(cache.times, {}, cache.stateless_closing(p)) > limit) return std::nullopt;
  const StageStates* state = &cache.state(p, cache.chunks_id(chunks));
  const double least =
      std::max(closed_bound(cache.times, *state, closing),
               slot_bound(cache.times, std::span(&state, 1), closing, cache.steps(p, m), cache.slots, limit));
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
      Fate::out_of_memory, node.members, p,
      [&] {
        if (!on_host) return too_large(job_, memory)->text;
        return fmt::format("needs {:.1f} of {:.1f} GiB (most of it {} of stage {})", gib(memory.peak),
                           gib(memory_limit_), memory.largest, memory.stage);
      },
      out);
  return false;
}

std::optional<Node> SearchTree::guess(const Node& division, Guess what, double limit,
                                      SearchCache& cache) const {
  const bool lean = what == Guess::lean, on_host = what == Guess::on_host;
  const auto index = [](const auto& list, const auto& wanted) {
    const auto found = std::find(list.begin(), list.end(), wanted);
    return small(found == list.end() ? 0 : static_cast<std::size_t>(found - list.begin()));
  };
  const auto most = [](const auto& list) {
    return small(static_cast<std::size_t>(std::max_element(list.begin(), list.end()) - list.begin()));
  };
  Choice c = division.choice;
  const ParallelPlan d = plan_of(space_, c);
  if (d.tp > job_.cluster.node.gpus && !lean) return std::nullopt;
  c.sequence_parallel = index(space_.sequence_parallel, static_cast<std::uint8_t>(d.tp > 1));
  if (d.tp > 1) c.overlap_tp = index(space_.overlap_tp, std::uint8_t{1});
  if (!has_kernels(plan_of(space_, c))) c.overlap_tp = index(space_.overlap_tp, std::uint8_t{0});
  std::optional<Node> best;
  const auto consider = [&] {
    const ParallelPlan p = plan(c, cache);
    const auto least = bound(p, best ? std::min(limit, best->bound) : limit, cache);
    if (!least || (best && *least >= best->bound)) return;
    Node node;
    node.level = Level::full, node.choice = c, node.refined = 1, node.bound = *least;
    Expansion ignored;
    if (fits(node, cache, ignored)) best = node;
  };
  const auto& ao = space_.activation_offload;
  const auto most_offloaded = static_cast<std::size_t>(
      std::ranges::max_element(ao, {},
                               [](const ActivationOffload& a) { return std::pair(a.layers, -a.horizon); }) -
      ao.begin());
  // Sharded optimizer state; of stacks that shard nothing or gradients too, each of what they offer.
  const std::vector<int>& offered = job_.stack.can.zero_stages;
  const bool shards_optimizer = std::ranges::count(offered, 1) > 0;
  if (on_host && (shards_optimizer || !may_offload_parameters_)) return std::nullopt;
  c.parameter_offload = index(space_.parameter_offload, static_cast<std::uint8_t>(on_host));
  c.optimizer_offload = index(space_.optimizer_offload,
                              on_host && job_.stack.can.parameter_offload_needs_optimizer ? 1.0 : 0.0);
  c.activation_offload = index(ao, ActivationOffload{0, on_host ? kFetchedAhead : 1});
  std::vector<int> stages = {d.replicas() > 1 && shards_optimizer ? 1 : 0};
  if (d.replicas() > 1 && !shards_optimizer) stages = offered;
  std::erase_if(stages, [&](int stage) { return std::ranges::count(space_.zero_stage, stage) == 0; });
  if (stages.empty()) stages = space_.zero_stage;
  const auto kinds = {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full};
  for (std::size_t mbs = 0; mbs < std::min<std::size_t>(2, space_.micro_batch.size()); ++mbs)
    for (std::size_t f = 0; f < space_.form.size(); ++f)
      for (const RecomputeKind kind : kinds) {
        if (d.pp == 1 && space_.form[f].schedule != PipelineSchedule::one_f_one_b) continue;
        c.micro_batch = small(mbs), c.form = small(f);
        c.recompute = index(space_.recompute, Recompute{kind, -1});
        if (!lean) {
          for (const int stage : stages) {
            c.zero_stage = index(space_.zero_stage, stage);
            consider();
          }
          continue;
        }
        // From a little of what saves memory to all of it.
        for (int saved = 0; saved < 4 && !best; ++saved) {
          c.zero_stage = most(space_.zero_stage);
          c.optimizer_offload = saved > 0 ? most(space_.optimizer_offload) : small(0);
          c.parameter_offload = saved > 1 ? most(space_.parameter_offload) : small(0);
          c.activation_offload = small(saved > 2 ? most_offloaded : 0);
          consider();
        }
      }
  return best;
}

}  // namespace sextant
