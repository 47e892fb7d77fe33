#include "planner/explain/framework_setting.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "core/plan/pipeline_order.hpp"
#include "core/plan/plan_key.hpp"

namespace sextant {

std::string framework_setting(const ParallelPlan& plan, const TrainingSpec& training,
                              const StackSpec& stack) {
  const int m = microbatches(plan, training);
  if (plan.schedule != PipelineSchedule::interleaved || m % plan.pp == 0 ||
      stack.can.interleaved_microbatches == InterleavedCount::equal_rounds)
    return "";
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

namespace {

// torchtitan's, whose own stages are unequal: it is told of any others.
std::string beside_the_usual_cut(const ParallelPlan& plan, const ModelSpec& model, const StackSpec& stack) {
  const int chunks = plan.pp * plan.vp, ends = stack.can.usual_end_layers;
  const std::vector<int> layers = layer_counts(layer_ranges(plan, model.n_layers));
  const auto own = cut_with_ends(model.n_layers, chunks, ends, ends);
  if (own == layers) return "";
  const std::string by_itself = own ? fmt::format("; {} itself makes {}", stack.name, cut_text(*own)) : "";
  if (cut_with_ends(model.n_layers, chunks, 0, 0) == layers)
    return fmt::format(
        "stages of {} layers need pipeline_parallel_first_stage_less_layers=0 and "
        "pipeline_parallel_last_stage_less_layers=0{}",
        cut_text(layers).substr(1), by_itself);
  return fmt::format(
      "stages of {} layers: module_fqns_per_model_part lists them (sextant export writes it){}",
      cut_text(layers).substr(1), by_itself);
}

}  // namespace

std::string layout_setting(const ParallelPlan& plan, const ModelSpec& model, const StackSpec& stack) {
  if (plan.pp > 1 && stack.can.usual_end_layers > 0) return beside_the_usual_cut(plan, model, stack);
  if (plan.pp < 2 || equal_chunks(plan, model.n_layers)) return "";
  const std::vector<LayerRange> chunks = layer_ranges(plan, model.n_layers);
  const int n_chunks = plan.pp * plan.vp, counted = model.n_layers + 2;
  const bool with_ends =
      counted % n_chunks == 0 && cut_with_ends(model.n_layers, n_chunks, 1, 1) == layer_counts(chunks);
  const std::string cut = with_ends
                              ? fmt::format("the {} layers, embedding and head are cut into {} chunks of {}",
                                            model.n_layers, n_chunks, counted / n_chunks)
                              : fmt::format("the {} layers are cut unequally", model.n_layers);
  if (const std::string option = cut_option(stack.can.uneven_stages, plan, model); !option.empty())
    return cut + ": " + option;
  // Only today's Megatron-Core reads such a string; stacks that build on its preset have options of their own.
  if (stack.name != "megatron-core") return "";
  return fmt::format(
      "{}: Megatron-Core takes that as --pipeline-model-parallel-layout \"{}\" alone, without "
      "--num-layers-per-virtual-pipeline-stage",
      cut, pipeline_layout(chunks));
}

}  // namespace sextant
