#include "planner/explain/framework_setting.hpp"

#include <algorithm>
#include <vector>

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

std::string pipeline_layout(const std::vector<LayerRange>& chunks) {
  const auto layers = [&](std::size_t i) {
    return std::string(static_cast<std::size_t>(chunks[i].count), 't');
  };
  std::string text = "E" + layers(0) + "|";
  const std::size_t last = chunks.size() - 1;
  for (std::size_t i = 1; i < last;) {
    std::size_t same = i + 1;
    while (same < last && layers(same) == layers(i)) ++same;
    text += same - i > 1 ? fmt::format("({}|)*{}", layers(i), same - i) : layers(i) + "|";
    i = same;
  }
  return text + layers(last) + "L";
}

std::string layout_setting(const ParallelPlan& plan, const ModelSpec& model, const StackSpec& stack) {
  if (plan.pp < 2 || equal_chunks(plan, model.n_layers)) return "";
  if (const std::string option = cut_option(stack.can.uneven_stages, plan, model); !option.empty())
    return fmt::format("the {} layers are cut unequally: {}", model.n_layers, option);
  // Only today's Megatron-Core reads such a string; stacks that build on its preset have options of their own.
  if (stack.name != "megatron-core") return "";
  return fmt::format(
      "the {} layers are cut unequally: Megatron-Core takes that as --pipeline-model-parallel-layout \"{}\" "
      "alone, without "
      "--num-layers-per-virtual-pipeline-stage",
      model.n_layers, pipeline_layout(layer_ranges(plan, model.n_layers)));
}

}  // namespace sextant
