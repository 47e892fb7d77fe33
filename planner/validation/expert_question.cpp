#include "planner/validation/expert_question.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "core/cluster/topology.hpp"
#include "cost_models/analytic.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {

namespace {

// Where layouts were tuned: vendors' recipes and frameworks' own published results. A sweep's best is no less tuned.
constexpr std::array<std::string_view, 6> kTuned = {
    "nvidia_megatron_bridge", "nvidia_dgxc", "nvidia_nemo", "megatron_lm", "torchtitan", "misc_singles"};

std::string question_of(const RunRow& row) {
  return fmt::format("{}, {} x {}, {}/{}, {} {}", row.model.name, row.nodes * row.gpus_per_node, row.gpu,
                     row.training.seq_len, row.training.global_batch, row.framework, row.precision);
}

ExpertAnswer answer(const RunRow& row, const FrameworkMap& map, const std::filesystem::path& preset_dir,
                    const UncertaintyRules& rules, const DecisionBasis& basis, double seconds) {
  ExpertAnswer out;
  out.run_id = row.run_id;
  out.source = row.source;
  out.question = question_of(row);
  out.measured_s = row.step_time->v;
  try {
    const ResolvedRun run = resolve(row, map, preset_dir);
    out.expert = run.plan;
    const Topology topology(run.cluster);
    const AnalyticCostModel cost(
        run.cluster, run.stack,
        load_cost_preset(run.cluster.device.generation, preset_dir / "cost").constants);
    const Job job{run.model, run.training, run.cluster, topology, run.stack, cost, run.interval, &rules};
    if (!validate(run.plan, run.model, run.training).empty()) {
      out.note = "the layout is not valid";
      return out;
    }
    const Prediction p = predict(job, run.plan);
    out.predicted_s = p.step.v;
    out.expert_oom_chance = p.chance_of_overflow;
    SearchOptions options;
    options.top = kJudged;
    options.budget_s = seconds;
    options.move_layers = false;
    const PlanLimits limits;
    const SearchReport report =
        search(job, default_space(run.model, run.training, run.cluster.device, run.cluster.gpus(), limits),
               for_fastest(options));
    if (report.ranked.empty())
      out.note = "nothing is predicted to fit";
    else
      out.ours = recommend(job, limits, report, basis, options);
  } catch (const std::exception& e) {
    out.note = e.what();
  }
  return out;
}

}  // namespace

std::vector<std::size_t> expert_rows(std::span<const RunRow> rows) {
  std::map<std::string, std::size_t> best;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const RunRow& row = rows[i];
    if (!row.step_time || row.quality == 'c' || !row.unreadable.empty() ||
        std::ranges::find(kTuned, row.source) == kTuned.end())
      continue;
    const auto [at, fresh] = best.try_emplace(question_of(row), i);
    if (!fresh && row.step_time->v < rows[at->second].step_time->v) at->second = i;
  }
  std::vector<std::size_t> out;
  for (const auto& [question, i] : best) out.push_back(i);
  std::ranges::sort(out);
  return out;
}

std::vector<ExpertAnswer> against_experts(std::span<const RunRow> rows, const FrameworkMap& map,
                                          const std::filesystem::path& preset_dir, double seconds,
                                          const std::function<void(std::size_t)>& tell) {
  const UncertaintyRules rules = load_uncertainty_rules(preset_dir);
  const DecisionBasis basis{load_decision_rule(preset_dir), load_evidence(preset_dir)};
  std::vector<ExpertAnswer> out;
  for (const std::size_t i : expert_rows(rows)) {
    out.push_back(answer(rows[i], map, preset_dir, rules, basis, seconds));
    if (tell) tell(out.size());
  }
  return out;
}

}  // namespace sextant
