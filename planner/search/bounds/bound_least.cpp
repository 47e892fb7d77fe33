// What the state of a stage takes whatever its buckets are, without a look at buckets: for plans by the thousand.
#include <algorithm>

#include "planner/search/bounds/bound.hpp"

namespace sextant {
namespace {

// Parameters of the stage without paddings, and without what some TP ranks hold twice.
std::int64_t least_elements(const ParameterCounts& counts, const ParallelPlan& plan,
                            const std::vector<LayerRange>& chunks, int stage) {
  std::int64_t elements = 0;
  for (int v = 0; v < plan.vp; ++v)
    elements += chunks[static_cast<std::size_t>(v * plan.pp + stage)].count * counts.layer();
  if (stage == 0) elements += counts.embedding;
  if (stage + 1 == plan.pp) elements += counts.head;
  return elements / plan.tp;
}

}  // namespace

StageStates least_state_times(const Job& job, const ParallelPlan& plan, const PlanLinks& plan_links,
                              const std::vector<LayerRange>& chunks, Start start) {
  const StackRules& rules = job.stack.rules;
  const TrainingSpec& training = job.training;
  const ParameterCounts counts = parameter_counts(job.model);
  const int shards = plan.shards();
  const bool every = reduces_every_microbatch(plan, rules);
  const auto seconds = [&](const Work& work) { return job.cost.price(work).duration.v; };
  const auto collective = [&](CollectiveKind kind, std::int64_t elements, const GroupShape& group) {
    return seconds(CollectiveWork{kind, Bytes(elements * size_bytes(training.reduction)), group});
  };
  const auto priced = [&](const StateWork& work) { return work.elements > 0 ? seconds(work) : 0; };
  const auto state_work = [&](StateKind kind, std::int64_t elements) {
    return priced({kind, elements, training.parameter, training.gradient});
  };
  StageStates out;
  out.reserve(static_cast<std::size_t>(plan.pp));
  std::int64_t before = -1;
  for (int stage = 0; stage < plan.pp; ++stage) {
    const std::int64_t elements = least_elements(counts, plan, chunks, stage), slice = elements / shards;
    if (elements == before && plan_links.index(stage) == plan_links.index(stage - 1)) {
      out.repeat();
      continue;
    }
    before = elements;
    const StageLinks& links = plan_links.of(stage);
    StateTimes t;
    if (plan.replicas() > 1) {
      // Of the last micro-batch, in one go; in buckets it takes no less. None is ready before its chunk's backward begins.
      double reduce = collective(shards > 1 ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
                                 elements, links.shard);
      if (links.replica.size > 1 && shards > 1)
        reduce += collective(CollectiveKind::all_reduce, slice, links.replica);
      const auto last_chunk = static_cast<std::uint16_t>(plan.vp - 1);
      t.reductions.push_back({.chunk = last_chunk, .head = true, .seconds = reduce});
      t.overlapped_total = reduce;
    }
    if (start == Start::known) {
      // Shares of single buckets are rounded.
      const auto share = [&](double of) {
        return static_cast<std::int64_t>(0.999 * of * static_cast<double>(slice));
      };
      const std::int64_t on_host = share(plan.optimizer_offload);
      t.start = state_work(StateKind::update, share(1 - plan.optimizer_offload));
      if (!every && !rules.gradients_begin_written) t.start += state_work(StateKind::zero, elements);
      // With an update by buckets the first of them alone has to be back from the host.
      if (!rules.pipelined_update) {
        double back = priced({.kind = StateKind::update,
                              .elements = on_host,
                              .parameter = training.parameter,
                              .gradient = training.gradient,
                              .host = true});
        if (on_host > 0 && !plan.parameter_offload)
          back += seconds(
              CopyWork{Bytes(on_host * size_bytes(training.parameter)), CopyDirection::host_to_device});
        t.start = std::max(t.start, back);
      }
    }
    out.add(std::move(t));
  }
  return out;
}

}  // namespace sextant
