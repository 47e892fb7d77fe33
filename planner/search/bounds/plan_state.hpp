// What the state of a plan's stages has in common, and the prices of its works: what state_times() asks of every bucket.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "planner/lowering/shapes.hpp"
#include "planner/search/bounds/bound.hpp"

namespace sextant {

// What holds for all stages of a plan, and the prices of its state.
struct PlanState {
  PlanState(const Job&, const ParallelPlan&, const PlanLinks&, std::span<const double> any_share);

  double seconds(const Work& work) const { return job.cost.price(work).duration.v; }
  double all_reduce(std::int64_t elements, Dtype type, const GroupShape& group) const {
    return seconds(CollectiveWork{CollectiveKind::all_reduce, Bytes(elements * size_bytes(type)), group});
  }
  double state_work(StateKind kind, std::int64_t elements) const { return seconds(state(kind, elements)); }
  double state_work_on_host(StateKind kind, std::int64_t elements) const {
    StateWork work = state(kind, elements);
    work.host = true;
    return seconds(work);
  }
  double updated_on_host(std::int64_t elements) const {
    return elements > 0 ? state_work_on_host(StateKind::update, elements) : 0.0;
  }
  // Parameters updated on the host come back by copy.
  double copied_back(std::int64_t elements) const {
    return elements > 0 && !plan.parameter_offload
               ? seconds(CopyWork{Bytes(elements * size_bytes(job.training.parameter)),
                                  CopyDirection::host_to_device})
               : 0.0;
  }
  // The update on the device, and when what the host updates is back.
  std::pair<double, double> updated_at_once(std::int64_t device, std::int64_t host) const {
    return {device > 0 ? state_work(StateKind::update, device) : 0.0,
            updated_on_host(host) + copied_back(host)};
  }

  const Job& job;
  const ParallelPlan& plan;
  const StackRules& rules;
  bool ring_gradients, ring_parameters;
  bool sums_norms;  // gradients of norms, over the TP ranks under SP
  bool split_backward;
  std::size_t unit_ring_count;
  int microbatches;
  // Every micro-batch but the first waits for each copy of gradients and its addition on the host.
  bool host_sums, waits;
  bool overlaps;          // reductions run while compute does
  bool reduces_tied;      // the two copies of a tied embedding
  double tied_reduction;  // seconds of that
  std::span<const double> any_share;
  std::optional<double> most_on_host;  // of any_share

 private:
  StateWork state(StateKind kind, std::int64_t elements) const {
    return {kind, elements, job.training.parameter, job.training.gradient};
  }
};

inline PlanState::PlanState(const Job& of, const ParallelPlan& its_plan, const PlanLinks& links,
                            std::span<const double> shares)
    : job(of),
      plan(its_plan),
      rules(of.stack.rules),
      ring_gradients(reduces_every_microbatch(plan, rules)),
      ring_parameters(fetches_parameters(plan, rules)),
      sums_norms(plan.sequence_parallel && plan.tp > 1),
      split_backward(plan.schedule == PipelineSchedule::zero_bubble),
      unit_ring_count(lowering::Context::unit_ring_count(plan, rules)),
      microbatches(sextant::microbatches(plan, of.training)),
      host_sums(sums_gradients_on_host(plan, rules)),
      waits(host_sums && microbatches > 1),
      overlaps(overlaps_grad_reduce(plan, rules) && plan.replicas() > 1),
      reduces_tied(of.model.tied_embeddings && plan.pp > 1),
      tied_reduction(tied_reduction_time(of, plan, links)),
      any_share(shares) {
  if (!any_share.empty()) most_on_host = *std::ranges::max_element(any_share);
}

}  // namespace sextant
