// What a user pins or narrows: "tp=4,pp=2", "tp<=8,mbs<=4,rec!=full". A predicate on layouts, readable one
// field at a time, so that a search need not form what is excluded. A list of layers per chunk is stated by a
// plan key instead.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/parallel_plan.hpp"

namespace sextant {

enum class PlanField : std::uint8_t {
  tp,
  cp,
  pp,
  vp,
  dp,
  zero_stage,
  shard_degree,  // effective: ParallelPlan::shards()
  micro_batch,
  sequence_parallel,  // 0, 1
  schedule,           // as PipelineSchedule
  recompute,          // as RecomputeKind: none < sel < full
  optimizer_offload,  // percent, 0..100
  parameter_offload,
  activation_offload,
  overlap_grad_reduce,
  overlap_param_gather,
  overlap_tp,
  bucket_elements,  // 0: the stack's rule
  last_bucket_split,
  offload_horizon,
  recompute_layers,  // of each chunk, in full: 0 unless `recompute` is full; kMaxLayers: all
  axis_order,        // place among the 24 orders, by axis_order_index
  stage_split,       // 0 even, 1 balanced (any other split is stated by a plan key)
};
inline constexpr int kPlanFields = 23;

// 0 for tp-cp-dp-pp ... 23, in lexical order of Axis.
int axis_order_index(const std::array<Axis, 4>&);

double field_value(const ParallelPlan&, PlanField);

enum class Relation : std::uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };

struct PlanLimit {
  PlanField field = PlanField::tp;
  Relation relation = Relation::equal;
  double value = 0;
  bool operator==(const PlanLimit&) const = default;
};

struct PlanLimits {
  std::vector<PlanLimit> limits;
  bool admits(PlanField, double value) const;
  bool admits(const ParallelPlan&) const;
  bool pins(PlanField) const;  // to one value
  bool operator==(const PlanLimits&) const = default;
};

// `flag` ("--fix", "--limit") is what messages name. With `only_equal`, just "field=value" is read. Throws
// ConfigError with every problem: unknown fields with a suggestion, values out of range, inconsistencies.
PlanLimits parse_plan_limits(std::string_view text, const std::string& flag, bool only_equal = false);
std::string to_string(const PlanLimits&);  // reads back to the same limits

// Two sets of limits together; throws ConfigError when no value of some field satisfies both.
PlanLimits combine(PlanLimits, const PlanLimits&);

}  // namespace sextant
