#include "tools/planning.hpp"

#include <chrono>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/command.hpp"

namespace sextant {

std::string question_text(const Question& q) {
  return fmt::format("{} on {} x {} ({} node{}, {}), {}; {} sequences of {} tokens", q.model.name,
                     q.cluster.gpus(), q.cluster.device.name, q.cluster.nodes,
                     q.cluster.nodes == 1 ? "" : "s", q.cluster.fabric.name, q.stack.name,
                     q.training.global_batch, q.training.seq_len);
}

std::string question_arguments(const QuestionOptions& o) {
  // Quoted where a shell would read more into it.
  const auto word = [](const std::string& text) {
    return text.find_first_of(" '\"<>|&;()$`\\*?[]{}!#~") == text.npos ? text : "'" + text + "'";
  };
  std::string text;
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) text += fmt::format(" {} {}", flag, word(value));
  };
  add("--model", o.model);
  add("--cluster", o.cluster);
  add("--stack", o.stack);
  if (o.seq_len > 0) add("--seq-len", fmt::format("{}", o.seq_len));
  if (o.global_batch > 0) add("--global-batch", fmt::format("{}", o.global_batch));
  for (const auto& setting : o.set) add("--set", setting);
  return text;
}

PlanFile plan_file_of(const Session& session, const Question& q, const ParallelPlan& plan,
                      const Prediction& p, std::map<std::string, double> breakdown_s) {
  PlanFile file;
  file.model = q.model, file.training = q.training, file.cluster = q.cluster, file.stack = q.stack;
  file.plan = plan;
  const double memory = gib(p.memory.peak);
  const double width = Uncertainty{}.memory;
  file.prediction = {.step_time_s = {p.step.v, p.step_lower.v, p.step_upper.v},
                     .peak_memory_GiB = {memory, memory * (1 - width), memory * (1 + width)},
                     .coverage = 0.8,
                     .tokens_per_s_per_gpu = p.tokens_per_s_gpu,
                     .model_tflops_per_gpu = p.model_tflops_gpu,
                     .mfu = p.mfu,
                     .breakdown_s = std::move(breakdown_s)};
  file.provenance = {.sextant = version_text(),
                     .created = fmt::format(
                         "{:%Y-%m-%dT%H:%M:%SZ}",
                         fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()))),
                     .command = session.arguments};
  return file;
}

nlohmann::ordered_json prediction_json(const ParallelPlan& plan, const Prediction& p) {
  return {{"key", plan_key(plan)},
          {"plan", nlohmann::json(plan)},
          {"step_time_s", p.step.v},
          {"step_time_s_lower", p.step_lower.v},
          {"step_time_s_upper", p.step_upper.v},
          {"tokens_per_s", p.tokens_per_s},
          {"tokens_per_s_per_gpu", p.tokens_per_s_gpu},
          {"model_tflops_per_gpu", p.model_tflops_gpu},
          {"mfu", p.mfu},
          {"mfu_causal_halved", p.mfu_causal},
          {"exposed_communication_share", p.exposed_share},
          {"peak_memory_GiB", gib(p.memory.peak)},
          {"available_memory_GiB", gib(p.memory_available)},
          {"host_memory_GiB", gib(p.memory.host)},
          {"heaviest_stage", p.memory.stage},
          {"fits", p.fits},
          {"usd_per_million_tokens", p.usd_per_million_tokens}};
}

std::string recompute_text(const Recompute& r) {
  if (r.kind == RecomputeKind::none) return "none";
  if (r.kind == RecomputeKind::selective) return "sel";
  return r.layers < 0 ? "full" : fmt::format("full{}", r.layers);
}

}  // namespace sextant
