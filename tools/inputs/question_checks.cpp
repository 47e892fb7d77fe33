#include "tools/inputs/question_checks.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/file_io.hpp"
#include "core/cluster/device_formats.hpp"
#include "core/plan/plan_key.hpp"
#include "planner/answers/sub_cluster.hpp"

namespace sextant {

void check_input(std::vector<Problem> problems, const std::string& flag) {
  for (auto& p : problems) p.file = flag;
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

std::vector<Problem> plan_problems(const Question& q) {
  std::vector<Problem> problems = validate(*q.plan, q.model, q.training);
  hint_unequal_replicas(problems, q.stack, *q.plan, q.training.global_batch);
  return problems;
}

void use_best_nodes(Question& q) {
  const int gpus = q.plan->world();
  if (gpus >= q.cluster.gpus()) return;
  const std::vector<int> left_out = left_out_nodes(q.cluster, gpus);
  // Where the last nodes are left out, ranks sit there anyhow.
  if (left_out.empty() || left_out.front() + static_cast<int>(left_out.size()) == q.cluster.nodes) return;
  q.cluster = sub_cluster(q.cluster, gpus);
  q.notes.push_back(fmt::format("the ranks are on the best nodes: {} {} left out", nodes_text(left_out),
                                left_out.size() == 1 ? "is" : "are"));
}

void check_precision(const DeviceSpec& device, Dtype compute, const std::string& stated_by) {
  auto problem = unknown_format(device, compute);
  if (!problem) return;
  problem->key = "training.compute";
  check_input({*std::move(problem)}, stated_by);
}

StackSpec with_blocks(StackSpec stack, const std::string& blocks, const std::filesystem::path& presets,
                      std::string_view generation) {
  if (std::ranges::find(kBlocksNames, blocks) == kBlocksNames.end() ||
      blocks == kBlocksNames[static_cast<std::size_t>(stack.kernels.blocks)])
    return stack;  // whoever reads the settings refuses what is no such word
  const auto other = stack.with_blocks.find(blocks);
  if (other == stack.with_blocks.end())
    throw ConfigError(Problem{
        .file = "--set",
        .key = "stack.kernels.blocks",
        .value = blocks,
        .expected = fmt::format("{}, the only ones that {} has constants for",
                                kBlocksNames[static_cast<std::size_t>(stack.kernels.blocks)], stack.name),
        .hint = "a file with that base states its own constants: docs/contributing.md"});
  return load_stack(other->second, presets, generation);
}

void remark_on_rope(const ModelSpec& model, std::vector<std::string>& notes) {
  const auto why = model.rope_scaling ? rope_not_run(*model.rope_scaling) : std::nullopt;
  if (!why) return;
  const std::string near = closest(model.rope_scaling->type, {kRopeTypes.begin(), kRopeTypes.end()});
  notes.push_back(fmt::format(
      "{}: {}{}; it is planned all the same, since no scaling of rotary "
      "positions changes what a step costs; sextant run refuses it",
      model.rope_scaling->type == "default" ? "rope" : "rope_scaling", *why,
      near.empty() || near == model.rope_scaling->type ? "" : fmt::format(" (did you mean {}?)", near)));
}

void check_positions(const ModelSpec& model, int seq_len, std::vector<std::string>& notes) {
  if (model.max_positions <= 0 || seq_len <= model.max_positions) return;
  if (model.position == PositionKind::rope)
    notes.push_back(
        fmt::format("sequences of {} tokens go beyond the {} positions of {}; they cost the same, whether "
                    "its rope is stretched or not",
                    seq_len, model.max_positions, model.name));
  if (model.position != PositionKind::learned) return;
  throw ConfigError(Problem{.file = "--seq-len",
                            .key = "",
                            .value = fmt::format("{}", seq_len),
                            .expected = fmt::format("at most {}: so many rows has the table of learned "
                                                    "positions of {}",
                                                    model.max_positions, model.name),
                            .hint = fmt::format("--set model.max_positions={} gives it more", seq_len)});
}

}  // namespace sextant
