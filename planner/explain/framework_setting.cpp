#include "planner/explain/framework_setting.hpp"

#include <fmt/format.h>

#include "core/plan/pipeline_order.hpp"

namespace sextant {

std::string framework_setting(const ParallelPlan& plan, const TrainingSpec& training) {
  const int m = microbatches(plan, training);
  if (plan.schedule != PipelineSchedule::interleaved || m % plan.pp == 0) return "";
  return fmt::format(
      "pp {0} does not divide the {1} micro-batches: they go through a virtual stage in groups of {2} "
      "(Megatron-Core: microbatch_group_size_per_vp_stage={2})",
      plan.pp, m, interleaved_group(plan.pp, m));
}

}  // namespace sextant
