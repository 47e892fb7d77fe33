// A plan key as people write it, with fields left out: dp is then as many replicas as the cluster has room for, and every
// other field what the software stack does. One rule for every verb; parse_plan_key (core/plan/parallel_plan.hpp) knows neither.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

struct FilledPlan {
  ParallelPlan plan;
  std::vector<std::string>
      notes;  // what was taken where the stack cannot do the usual, and GPUs that are idle
  std::vector<std::string> stated;     // parts that the key has: "tp", "z", "recompute"
  std::optional<Problem> indivisible;  // no dp fills the GPUs: plan.dp is 1
};

// Throws ConfigError where parse_plan_key does. A key that needs more GPUs than there are is left with dp 1.
// `model`: what its layers are cut into where the stack cuts by a rule of its own.
FilledPlan fill_plan_key(std::string_view key, const StackSpec&, int gpus, Dtype parameter = Dtype::bf16,
                         const ModelSpec* model = nullptr);

// Where validate() has found that replicas do not divide the batch: the hint how a key deals it to unequal ones, "ga26x3-25x2". Given
// where the stack has those, the micro-batch divides the batch, and no replica would be without any.
void hint_unequal_replicas(std::vector<Problem>&, const StackSpec&, const ParallelPlan&, int global_batch);

// Layers of chunks as a key states them: "L8-9-8-7" or "L8x4".
std::string cut_text(const std::vector<int>& layers);

// "2 of the cluster's 64 GPUs are used; 62 are idle", or nothing.
std::optional<std::string> idle_gpus(const ParallelPlan&, int gpus);

}  // namespace sextant
