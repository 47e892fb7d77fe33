#include "planner/answers/usual_layouts.hpp"

#include <algorithm>
#include <utility>

#include "planner/answers/decision_rule.hpp"

namespace sextant {

std::vector<std::string> unusual_features(const Job& job, const EvidenceTable& evidence,
                                          const ParallelPlan& plan) {
  auto out = unusual_features(plan, job.model.n_layers, job.cluster, job.stack.can);
  for (std::string& degree : evidence_of(job, evidence, plan).far) out.push_back(std::move(degree));
  return out;
}

PlanLimits usual_limits(const Job& job, const PlanLimits& limits, const EvidenceTable& evidence,
                        std::initializer_list<PlanField> on_host) {
  PlanLimits within = limits;
  for (const PlanField field : kOffloads)
    if (std::ranges::count(on_host, field) == 0) within.limits.push_back(pinned(field, 0));
  const double domain = job.cluster.node.gpus * job.cluster.node.domain_nodes;
  within.limits.insert(within.limits.end(),
                       {pinned(PlanField::bucket_elements, 0), pinned(PlanField::last_bucket_split, 1),
                        pinned(PlanField::axis_order, axis_order_index(job.stack.can.usual_order())),
                        at_most_of(PlanField::schedule, static_cast<double>(PipelineSchedule::interleaved)),
                        at_most_of(PlanField::tp, domain)});
  const EvidenceCell most = evidence.not_far(job.stack.name);
  int most_cp = most.most_cp;
  if (const int fewest = evidence.fewest_cp_tokens())
    most_cp = std::min(most_cp, (kFarBeyond * job.training.seq_len - 1) / fewest);
  within.limits.insert(within.limits.end(),
                       {at_most_of(PlanField::pp, most.most_pp), at_most_of(PlanField::vp, most.most_vp),
                        at_most_of(PlanField::cp, std::max(most_cp, 1))});
  // Where layers alone divide badly, embedding and head are counted with them. A framework's own rule is not for us to leave.
  if (job.model.n_layers % 4 != 2 && !cuts_by_rule(job.stack.can.uneven_stages, 1))
    within.limits.push_back(pinned(PlanField::stage_split, 0));
  return within;
}

std::vector<PlanLimits> advised_limits(const StackSpec& stack, const PlanLimits& usual) {
  const int advised = stack.can.advised_zero_with_tp;
  if (advised >= 3) return {usual};
  PlanLimits alone = usual, lower = usual;
  alone.limits.insert(alone.limits.end(), {pinned(PlanField::tp, 1), pinned(PlanField::cp, 1)});
  lower.limits.push_back(at_most_of(PlanField::zero_stage, advised));
  return {alone, lower};
}

}  // namespace sextant
