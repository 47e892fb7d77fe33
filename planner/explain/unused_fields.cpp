#include "planner/explain/unused_fields.hpp"

#include <algorithm>

#include "core/graph/parameter_layout.hpp"
#include "planner/search/stage_split.hpp"

namespace sextant {
namespace {

bool cuts_some_bucket(ParallelPlan plan, const ModelSpec& model, const StackRules& rules) {
  const int pieces = plan.last_bucket_split;
  for (int stage = 0; stage < plan.pp; ++stage) {
    plan.last_bucket_split = pieces;
    const auto cut = parameter_layout(model, plan, rules, stage).buckets.size();
    plan.last_bucket_split = 1;
    if (cut != parameter_layout(model, plan, rules, stage).buckets.size()) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> unused_fields(const ParallelPlan& plan, const ModelSpec& model,
                                       const StackSpec& stack) {
  const StackRules& rules = stack.rules;
  std::vector<std::string> out;
  const bool units = buckets_are_units(plan, rules);
  if (plan.offload_horizon != ParallelPlan().offload_horizon && plan.activation_offload == 0 &&
      !plan.parameter_offload)
    out.push_back("offload_horizon: neither activations nor parameters are offloaded");
  if (plan.activation_offload > 0 && !stack.can.activation_offload_needs_recompute &&
      plan.recompute.kind == RecomputeKind::full &&
      (plan.recompute.layers < 0 ||
       plan.recompute.layers >= longest_chunk(layer_ranges(plan, model.n_layers))))
    out.push_back(
        "activation_offload: layers that are recomputed keep nothing to offload; its buffers are held all "
        "the same");
  if (plan.bucket_elements > 0 && units)
    out.push_back("bucket_elements: the gradients of a layer are reduced together, whatever their size");
  else if (plan.bucket_elements > 0 && bucket_limit(plan, rules) == 0)
    out.push_back("bucket_elements: gradients that are reduced after the backward pass are one bucket");
  if (plan.last_bucket_split > 1 && units)
    out.push_back("last_bucket_split: the gradients of a layer are reduced together");
  else if (plan.last_bucket_split > 1 && !cuts_some_bucket(plan, model, rules))
    out.push_back("last_bucket_split: the last bucket of every stage is one tensor, and tensors are not cut");
  return out;
}

}  // namespace sextant
