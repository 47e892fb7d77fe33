// Which fields of a plan does a framework have options for? The capabilities of the stack that predicts it, and what those leave
// open: order of the axes, number formats, kinds of models, switches that are always on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/plan/plan_file.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// Number formats that a target has options for; those of one line go together.
struct TargetFormats {
  Dtype compute, parameter, gradient, reduction, optimizer_state;
};

struct TargetFeatures {
  StackCapabilities can;
  std::vector<AxisOrder> axis_orders = {{Axis::tp, Axis::cp, Axis::dp, Axis::pp}};  // none: any
  bool offload_horizon = false;           // layers ahead that are fetched back are an option
  bool without_grad_overlap = true;       // gradient reduction can be left unoverlapped
  bool without_param_overlap = true;      // and the parameter gather
  bool without_sequence_parallel = true;  // tp without sequence parallelism
  std::vector<TargetFormats> formats;     // the first is the nearest to what it has no option for
  // Of the model.
  bool whole_model =
      false;  // the plan file itself is read: the target's rules say what of a model it cannot do
  bool learned_positions = false, alibi = false, layer_norm = false, plain_mlp = false,
       embedding_norm = false;
  bool every_bias = false, qkv_bias = false, output_bias = false, mlp_bias = false;
  bool tied_embeddings = true, own_head_dim = false;
  std::vector<std::string> rope_scaling;  // types of core/model/model_spec.hpp's kRopeTypes
};

// One field of the plan that a target has no option for, and what it could be instead.
struct PlanChange {
  std::string what;  // "zero_stage 3"
  std::function<void(PlanFile&)> apply;
};
struct Inexpressible {
  std::string field, value, reason;
  std::vector<PlanChange> changes;  // each makes it expressible in this respect; empty: nothing does
};

// What the features alone say about the plan, field by field in the order of the plan file.
std::vector<Inexpressible> beyond_features(const TargetFeatures&, const PlanFile&);

// Changes that rules of several targets offer.
PlanChange set_field(const std::string& what, std::function<void(ParallelPlan&)> apply);

}  // namespace sextant
