#include "tools/planning.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/lower.hpp"
#include "tools/command.hpp"
#include "tools/table.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

void require_fit(const Job& job, const ParallelPlan& plan) {
  if (plan.world() > job.topology.ranks())
    throw ConfigError(
        Problem{.file = "--plan",
                .key = "tp * cp * pp * dp",
                .value = fmt::format("{} ranks", plan.world()),
                .expected = fmt::format("at most the {} GPUs of {}", job.topology.ranks(), job.cluster.name),
                .hint = "lower dp, or name a larger --cluster"});
  if (const auto refused = unlawful(job, plan))
    throw ConfigError(Problem{.file = "--plan",
                              .key = "",
                              .value = plan_key(plan),
                              .expected = "a layout that model, batch and stack allow",
                              .hint = refused->text});
}

// Categories that some stage spends time in, in the order of the enum.
std::vector<int> used(const Breakdown& b) {
  std::vector<int> out;
  for (int c = 0; c < kTimeCategories; ++c)
    if (b.mean[static_cast<std::size_t>(c)] > 5e-5 * b.step.v) out.push_back(c);
  return out;
}

}  // namespace

Planning::Planning(const Question& q, const std::filesystem::path& presets)
    : topology(q.cluster), cost(q.cluster, q.stack, presets), job{q.model,  q.training, q.cluster,
                                                                  topology, q.stack,    cost} {}

Simulated simulate_plan(const Job& job, const ParallelPlan& plan, bool operands) {
  require_fit(job, plan);
  Simulated s;
  s.graph = lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {operands});
  const auto costs = price(s.graph, job.cost);
  s.timeline = simulate(s.graph, costs, simulate_options(job, plan));
  s.breakdown = breakdown(s.graph, s.timeline);
  s.memory = estimate_memory(job.model, job.training, plan, job.stack);
  s.prediction = predict(job, plan);
  return s;
}

PlanFile plan_file(const Question& q, const ParallelPlan& plan, const Simulated& s) {
  PlanFile file;
  file.model = q.model, file.training = q.training, file.cluster = q.cluster, file.stack = q.stack,
  file.plan = plan;
  const Prediction& p = s.prediction;
  file.prediction.step_time_s = {p.step.v, p.step_lower.v, p.step_upper.v};
  const double peak = gib(p.memory.peak);
  constexpr double kMemoryWidth = 0.08;  // Uncertainty::memory
  file.prediction.peak_memory_GiB = {peak, peak * (1 - kMemoryWidth), peak * (1 + kMemoryWidth)};
  file.prediction.tokens_per_s_per_gpu = p.tokens_per_s_gpu;
  file.prediction.model_tflops_per_gpu = p.model_tflops_gpu;
  file.prediction.mfu = p.mfu;
  double sum = 0;
  for (int c = 0; c < kTimeCategories; ++c) {
    const double seconds = s.breakdown.mean[static_cast<std::size_t>(c)];
    file.prediction.breakdown_s[std::string(name(static_cast<TimeCategory>(c)))] = seconds;
    sum += seconds;
  }
  file.prediction.breakdown_s["jitter_and_host"] = p.step.v - sum;
  file.provenance.sextant = version_text();
  file.provenance.created =
      fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::now()));
  return file;
}

std::string headline(const Question& q) {
  const int nodes = q.cluster.nodes;
  return fmt::format("{}, {:.2f} B parameters, on {} x {} ({} node{}, {}); {} tokens x {} sequences; {}",
                     q.model.name, static_cast<double>(parameter_counts(q.model).total) * 1e-9,
                     q.cluster.gpus(), q.cluster.device.name, nodes, nodes == 1 ? "" : "s",
                     q.cluster.fabric.name, q.training.seq_len, q.training.global_batch,
                     q.stack.title.empty() ? q.stack.name : q.stack.title);
}

std::string step_table(Session& session, const Breakdown& b, const Prediction& p) {
  std::vector<Column> columns = {
      {"ms per step", Align::left}, {"mean", Align::right}, {"share %", Align::right}};
  const int stages = static_cast<int>(b.stages.size());
  for (int s = 0; s < stages; ++s)  // middle stages are alike: dropped first
    columns.push_back({fmt::format("stage {}", s), Align::right, 1 + std::min(s, stages - 1 - s)});
  Table table(std::move(columns));
  const auto row = [&](const std::string& label, double mean, auto&& of_stage) {
    std::vector<std::string> cells = {label, fmt::format("{:.1f}", mean * 1e3),
                                      fmt::format("{:.1f}", 100 * mean / p.step.v)};
    for (int s = 0; s < stages; ++s)
      cells.push_back(fmt::format("{:.1f}", of_stage(static_cast<std::size_t>(s)) * 1e3));
    table.add_row(std::move(cells));
  };
  for (const int c : used(b)) {
    const auto i = static_cast<std::size_t>(c);
    row(std::string(name(static_cast<TimeCategory>(c))), b.mean[i],
        [&](std::size_t s) { return b.stages[s][i]; });
  }
  const double rest = p.step.v - b.step.v;
  row("stragglers, host", rest, [&](std::size_t) { return rest; });
  row("step", p.step.v, [&](std::size_t) { return p.step.v; });
  table.emphasize_last_row();
  return table.render(session.terminal, session.common.wide);
}

std::string memory_table(Session& session, const MemoryEstimate& m, Bytes available) {
  std::vector<Column> columns = {{"GiB at the peak", Align::left}};
  const int stages = static_cast<int>(m.stages.size());
  for (int s = 0; s < stages; ++s)
    columns.push_back(
        {fmt::format("stage {}", s), Align::right, s == m.heaviest ? 0 : 1 + std::min(s, stages - 1 - s)});
  Table table(std::move(columns));
  const auto row = [&](std::string label, auto&& of_stage, bool always) {
    std::vector<std::string> cells = {std::move(label)};
    bool any = always;
    for (const StageMemory& stage : m.stages) {
      const double bytes = gib(of_stage(stage));
      any = any || bytes >= 0.005;
      cells.push_back(fmt::format("{:.2f}", bytes));
    }
    if (any) table.add_row(std::move(cells));
  };
  for (int k = 0; k < kBufferKinds; ++k)
    if (static_cast<BufferKind>(k) != BufferKind::host)
      row(
          std::string(name(static_cast<BufferKind>(k))),
          [k](const StageMemory& s) { return Bytes(s.at_peak[static_cast<std::size_t>(k)]); }, false);
  row(
      "allocated", [](const StageMemory& s) { return s.allocated(); }, true);
  row(
      "allocator reserve", [](const StageMemory& s) { return s.fragmented; }, false);
  row(
      "context, NCCL", [](const StageMemory& s) { return s.outside; }, false);
  row(
      fmt::format("reserved, of {:.2f}", gib(available)), [](const StageMemory& s) { return s.reserved(); },
      true);
  table.emphasize_last_row();
  row(
      "on the host", [](const StageMemory& s) { return Bytes(s.host); }, false);
  return table.render(session.terminal, session.common.wide);
}

Json to_json(const Prediction& p) {
  return {{"step_time_s", p.step.v},
          {"step_time_s_lower", p.step_lower.v},
          {"step_time_s_upper", p.step_upper.v},
          {"tokens_per_s", p.tokens_per_s},
          {"tokens_per_s_per_gpu", p.tokens_per_s_gpu},
          {"model_tflops_per_gpu", p.model_tflops_gpu},
          {"mfu", p.mfu},
          {"mfu_causal_halved", p.mfu_causal},
          {"peak_memory_GiB", gib(p.memory.peak)},
          {"peak_memory_stage", p.memory.stage},
          {"device_memory_GiB", gib(p.memory_available)},
          {"host_memory_GiB", gib(p.memory.host)},
          {"fits", p.fits},
          {"usd_per_million_tokens",
           p.usd_per_million_tokens > 0 ? Json(p.usd_per_million_tokens) : Json(nullptr)}};
}

Json to_json(const Breakdown& b) {
  const auto split = [](const TimeSplit& s) {
    Json out;
    for (int c = 0; c < kTimeCategories; ++c)
      out[std::string(name(static_cast<TimeCategory>(c))) + "_s"] = s[static_cast<std::size_t>(c)];
    return out;
  };
  Json stages = Json::array();
  for (const TimeSplit& stage : b.stages) stages.push_back(split(stage));
  return {{"simulated_s", b.step.v}, {"mean", split(b.mean)}, {"stages", stages}};
}

Json to_json(const MemoryEstimate& m) {
  Json stages = Json::array();
  for (const StageMemory& s : m.stages) {
    Json stage;
    for (int k = 0; k < kBufferKinds; ++k)
      stage[std::string(name(static_cast<BufferKind>(k))) + "_bytes"] =
          s.at_peak[static_cast<std::size_t>(k)];
    stage["allocated_bytes"] = s.allocated().v;
    stage["allocator_reserve_bytes"] = s.fragmented.v;
    stage["outside_bytes"] = s.outside.v;
    stage["reserved_bytes"] = s.reserved().v;
    stages.push_back(std::move(stage));
  }
  return {{"heaviest_stage", m.heaviest}, {"stages", stages}};
}

}  // namespace sextant
