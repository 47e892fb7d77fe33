#include "tools/verbs/validate_decision.hpp"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "core/runs/evidence.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "planner/validation/expert_question.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/output/validation_text.hpp"
#include "tools/terminal/progress.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

Json score_json(const DecisionScore& s) {
  return {{"groups", s.groups},
          {"regret_mean_percent", s.mean},
          {"regret_worst_percent", s.worst},
          {"worst_group", s.worst_group},
          {"regret_of_best_of_3_mean_percent", s.mean_of_three}};
}

std::string score_text(const DecisionScore& s) {
  return fmt::format("mean {:.2f} %, worst {:.1f} % ({}), best of three {:.2f} %", s.mean, s.worst,
                     s.worst_group, s.mean_of_three);
}

}  // namespace

DecisionGroups decision_groups_of(std::span<const RunRow> rows, std::span<const RunPrediction> predictions,
                                  bool with_quality_c) {
  DecisionGroups out{.all = decision_groups(rows, predictions, with_quality_c),
                     .agreed = {},
                     .inconsistent = inconsistent_times(rows)};
  out.agreed = out.inconsistent.empty()
                   ? out.all
                   : decision_groups(without(rows, out.inconsistent), predictions, with_quality_c);
  return out;
}

void print_decision(Session& session, const DecisionGroups& groups, std::span<const RunRow> rows) {
  if (groups.all.empty()) return;
  const DecisionRule rule = load_decision_rule(session.presets());
  const auto say = [&](const std::string& before, const DecisionScore& s) {
    print_wrapped(
        session.terminal.out, session.terminal,
        fmt::format("{}regret of the recommendation in {} groups: {}", before, s.groups, score_text(s)));
  };
  say("", score_decision(groups.all, rule));
  if (!groups.inconsistent.empty())
    say(inconsistent_text(rows, groups.inconsistent), score_decision(groups.agreed, rule));
}

nlohmann::ordered_json decision_json(const Session& session, const DecisionGroups& groups,
                                     std::span<const RunRow> rows) {
  const DecisionRule rule = load_decision_rule(session.presets());
  Json j = score_json(score_decision(groups.all, rule));
  j["inconsistent_runs"] = Json::array();
  for (const InconsistentTime& t : groups.inconsistent) j["inconsistent_runs"].push_back(rows[t.row].run_id);
  j["without_inconsistent_runs"] = score_json(score_decision(groups.agreed, rule));
  j["by_group"] = Json::array();
  for (const DecisionGroup& g : groups.all)
    j["by_group"].push_back({{"source", g.source},
                             {"group", g.id},
                             {"layouts", g.layouts.size()},
                             {"regret_percent", regret_of_recommended(g, rule)},
                             {"regret_of_best_of_3_percent", regret_of_three(g, rule)}});
  return j;
}

ExitCode fit_decision(Session& session, const DecisionGroups& groups, std::span<const RunRow> rows) {
  if (groups.all.empty()) throw UsageError("--fit-decision needs groups of four or more measured layouts");
  const DecisionRule rule = load_decision_rule(session.presets());
  const DecisionFit fit = fit_decision(groups.all, rule), agreed = fit_decision(groups.agreed, rule);
  if (session.common.json) {
    print_json(session, "validate",
               {{"decision",
                 {{"optimism", fit.rule.optimism},
                  {"told_apart", fit.rule.told_apart},
                  {"pairwise_error", fit.pairwise_error},
                  {"in_sample", score_json(fit.in_sample)},
                  {"leave_one_source_out", score_json(fit.held_out)},
                  {"leave_one_source_out_without_inconsistent_runs", score_json(agreed.held_out)}}}});
    return ExitCode::ok;
  }
  const auto say = [&](const std::string& text) {
    print_wrapped(session.terminal.out, session.terminal, text);
  };
  say(fmt::format("optimism {:g}, told_apart {:g}: the most that costs {} measured groups nothing",
                  fit.rule.optimism, fit.rule.told_apart, fit.in_sample.groups));
  say(fmt::format("pairwise error (what feature_pays stands for): {:.1f} %, median of groups",
                  100 * fit.pairwise_error));
  say("regret in-sample: " + score_text(fit.in_sample));
  say("regret leave-one-source-out: " + score_text(fit.held_out));
  if (!groups.inconsistent.empty())
    say(inconsistent_text(rows, groups.inconsistent) +
        "regret leave-one-source-out: " + score_text(agreed.held_out));
  return ExitCode::ok;
}

void write_evidence(const Session& session, std::span<const RunRow> rows, const FrameworkMap& map,
                    const std::string& file) {
  EvidenceTable table = load_evidence(session.presets());  // its families
  std::vector<EvidenceCell>& cells = table.cells;
  cells.clear();
  for (const RunRow& row : rows) {
    if (!row.unreadable.empty() || !row.step_time) continue;  // quality c as well: somebody runs it
    try {
      const ResolvedRun run = resolve(row, map, session.presets());
      add_run(cells,
              evidence_cell(run.stack.name, run.cluster.device.generation, run.plan, run.training.seq_len));
    } catch (const ConfigError&) {  // told when it is predicted
    }
  }
  std::ranges::sort(cells, {}, [](const EvidenceCell& c) {
    return std::tuple(c.stack, c.generation, c.tp, c.pp, c.cp, c.offload, c.zero_stage);
  });
  write_file_atomic(file, evidence_json_text(table));
}

ExitCode compare_with_experts(Session& session, std::span<const RunRow> rows, const FrameworkMap& map) {
  constexpr double kSecondsEach = 20;
  std::vector<ExpertAnswer> answers;
  {
    Progress progress(session.terminal, "planning", static_cast<double>(expert_rows(rows).size()),
                      "questions");
    answers = against_experts(rows, map, session.presets(), kSecondsEach,
                              [&](std::size_t done) { progress.update(static_cast<double>(done)); });
  }
  std::ranges::stable_sort(answers, {}, &ExpertAnswer::predicted_ratio);
  if (session.common.json) {
    Json all = Json::array();
    for (const ExpertAnswer& a : answers) {
      Json j = {{"run_id", a.run_id},           {"question", a.question},
                {"expert", plan_key(a.expert)}, {"measured_s", a.measured_s},
                {"predicted_s", a.predicted_s}, {"expert_chance_of_overflow", a.expert_oom_chance},
                {"recommended", nullptr},       {"note", a.note}};
      if (a.ours) {
        j["recommended"] = recommendation_json(*a.ours);
        j["predicted_ratio"] = a.predicted_ratio();
      }
      all.push_back(j);
    }
    print_json(session, "validate", {{"against_experts", all}});
    return ExitCode::ok;
  }
  Table table({{"ours/expert", Align::right},
               {"expert's layout", Align::left},
               {"measured", Align::right, 1},
               {"predicted", Align::right, 2},
               {"recommended", Align::left},
               {"OOM", Align::right},
               {"question", Align::left, 3}});
  int faster = 0, none = 0;
  for (const ExpertAnswer& a : answers) {
    if (!a.ours) {
      ++none;
      continue;
    }
    constexpr double kProbablyWrong = 0.9;
    faster += a.predicted_ratio() < kProbablyWrong ? 1 : 0;
    const Prediction& p = a.ours->plan.prediction;
    table.add_row({fmt::format("{:.2f}", a.predicted_ratio()), layout_words(a.expert),
                   fmt::format("{:.2f}", a.measured_s), fmt::format("{:.2f}", a.predicted_s),
                   layout_words(a.ours->plan.plan) + (a.ours->features.empty() ? "" : " *"),
                   fmt::format("{:.0f} %", 100 * p.chance_of_overflow), a.question});
  }
  session.terminal.out << table.render(session.terminal, session.common.wide);
  print_wrapped(
      session.terminal.out, session.terminal,
      fmt::format(
          "{} questions; in {} of them the recommendation is predicted to be more than 10 % "
          "faster than the experts' layout, which is more likely an error of the model; *: "
          "with unusual features{}",
          answers.size(), faster,
          none > 0 ? fmt::format("; {} without an answer: --json gives the reason of each", none) : ""));
  return ExitCode::ok;
}

}  // namespace sextant
