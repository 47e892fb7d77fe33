#include "planner/validation/decision_score.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

namespace sextant {

namespace {

double percent_over(double measured, const DecisionGroup& g) {
  return 100 * (measured / std::ranges::min(g.measured) - 1);
}

double middle(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Of a group: how far two of its layouts are wrong against each other.
double pairwise_error(const DecisionGroup& g) {
  std::vector<double> errors;
  for (std::size_t i = 0; i < g.layouts.size(); ++i)
    for (std::size_t k = i + 1; k < g.layouts.size(); ++k)
      errors.push_back(std::abs(std::log(g.layouts[i].step / g.measured[i]) -
                                std::log(g.layouts[k].step / g.measured[k])));
  return middle(std::move(errors));
}

DecisionRule best_rule(const std::vector<DecisionGroup>& groups, const DecisionRule& from) {
  constexpr std::array kOptimism = {0.0, 0.1, 0.2, 0.3, 0.4, 0.5};
  constexpr std::array kToldApart = {0.0, 0.005, 0.01, 0.015, 0.02, 0.03};
  constexpr double kEqual = 1e-6;
  DecisionRule best = from;
  double least = INFINITY;
  for (const double optimism : kOptimism)
    for (const double told_apart : kToldApart) {
      DecisionRule rule = from;
      rule.optimism = optimism;
      rule.told_apart = told_apart;
      const double mean = score_decision(groups, rule).mean;
      if (mean > least + kEqual) continue;
      least = std::min(least, mean);
      best = rule;
    }
  return best;
}

}  // namespace

std::vector<DecisionGroup> decision_groups(std::span<const RunRow> rows,
                                           std::span<const RunPrediction> predictions, bool with_quality_c) {
  constexpr std::size_t kSmallestGroup = 4;
  std::map<std::pair<std::string, std::string>, DecisionGroup> groups;
  for (std::size_t i = 0; i < rows.size() && i < predictions.size(); ++i) {
    const RunRow& row = rows[i];
    const RunPrediction& p = predictions[i];
    if (!row.step_time || !p.step_s || row.group_id.empty() || (row.quality == 'c' && !with_quality_c))
      continue;
    DecisionGroup& g = groups[{row.source, row.group_id}];
    g.source = row.source;
    g.id = row.group_id;
    Judged layout = p.judged;
    layout.step = *p.step_s / row.training.global_batch;
    if (p.step_upper_s) layout.half_width = *p.step_upper_s / *p.step_s - 1;
    layout.oom_chance = p.chance_of_overflow.value_or(0);
    layout.offered = p.fits.value_or(true);
    g.layouts.push_back(layout);
    g.measured.push_back(row.step_time->v / row.training.global_batch);
  }
  std::vector<DecisionGroup> out;
  for (auto& [key, group] : groups)
    if (group.layouts.size() >= kSmallestGroup) out.push_back(std::move(group));
  return out;
}

double regret_of_recommended(const DecisionGroup& g, const DecisionRule& rule) {
  return percent_over(g.measured[recommended(g.layouts, rule)], g);
}

double regret_of_three(const DecisionGroup& g, const DecisionRule& rule) {
  const std::size_t first = recommended(g.layouts, rule);
  std::vector<std::size_t> others;
  const bool any = std::ranges::any_of(g.layouts, [](const Judged& x) { return x.offered; });
  for (std::size_t i = 0; i < g.layouts.size(); ++i)
    if (i != first && (g.layouts[i].offered || !any)) others.push_back(i);
  std::ranges::stable_sort(others, {}, [&](std::size_t i) { return g.layouts[i].step; });
  double least = g.measured[first];
  for (std::size_t k = 0; k < std::min<std::size_t>(2, others.size()); ++k)
    least = std::min(least, g.measured[others[k]]);
  return percent_over(least, g);
}

DecisionScore score_decision(std::span<const DecisionGroup> groups, const DecisionRule& rule) {
  DecisionScore s;
  for (const DecisionGroup& g : groups) {
    const double regret = regret_of_recommended(g, rule);
    s.mean += regret;
    s.mean_of_three += regret_of_three(g, rule);
    if (s.groups++ == 0 || regret > s.worst) {
      s.worst = regret;
      s.worst_group = g.id;
    }
  }
  s.mean /= std::max(1, s.groups);
  s.mean_of_three /= std::max(1, s.groups);
  return s;
}

DecisionFit fit_decision(std::span<const DecisionGroup> groups, const DecisionRule& from) {
  DecisionFit fit;
  const std::vector<DecisionGroup> all(groups.begin(), groups.end());
  fit.rule = best_rule(all, from);
  fit.in_sample = score_decision(all, fit.rule);
  std::set<std::string> sources;
  std::vector<double> errors;
  for (const DecisionGroup& g : all) {
    sources.insert(g.source);
    errors.push_back(pairwise_error(g));
  }
  fit.pairwise_error = std::expm1(middle(std::move(errors)));
  for (const std::string& source : sources) {
    std::vector<DecisionGroup> others, own;
    for (const DecisionGroup& g : all) (g.source == source ? own : others).push_back(g);
    const DecisionScore s = score_decision(own, best_rule(others, from));
    fit.held_out.mean += s.mean * s.groups;
    fit.held_out.mean_of_three += s.mean_of_three * s.groups;
    if (fit.held_out.groups == 0 || s.worst > fit.held_out.worst) {
      fit.held_out.worst = s.worst;
      fit.held_out.worst_group = s.worst_group;
    }
    fit.held_out.groups += s.groups;
  }
  fit.held_out.mean /= std::max(1, fit.held_out.groups);
  fit.held_out.mean_of_three /= std::max(1, fit.held_out.groups);
  return fit;
}

}  // namespace sextant
