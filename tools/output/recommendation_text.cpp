#include "tools/output/recommendation_text.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/words.hpp"
#include "core/plan/plan_key.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/output/layout_table.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

// "no recomputation", "selective recomputation", "10 layers per chunk recomputed".
std::string recomputation_words(const Recompute& r) {
  if (r.kind == RecomputeKind::none) return "no recomputation";
  if (r.kind == RecomputeKind::selective) return "selective recomputation";
  return r.layers < 0 ? "full recomputation"
                      : fmt::format("{} layer{} per chunk recomputed", r.layers, r.layers == 1 ? "" : "s");
}

}  // namespace

std::string memory_words(const ParallelPlan& p) {
  std::string out = recomputation_words(p.recompute);
  std::vector<std::string> host;
  if (p.parameter_offload) host.emplace_back("parameters");
  if (p.optimizer_offload > 0)
    host.push_back(p.optimizer_offload == 1
                       ? "the optimizer"
                       : fmt::format("{:.0f} % of the optimizer", 100 * p.optimizer_offload));
  if (p.activation_offload > 0)
    host.push_back(
        fmt::format("activations of {} layer{}", p.activation_offload, p.activation_offload == 1 ? "" : "s"));
  if (!host.empty()) out += fmt::format(", on the host: {}", fmt::join(host, " and "));
  return out;
}

std::string layout_words(const ParallelPlan& p) {
  std::string out;
  const auto degree = [&](const char* what, int n) {
    if (n > 1) out += fmt::format("{}{} ", what, n);
  };
  degree("TP", p.tp);
  degree("PP", p.pp);
  degree("VP", p.vp);
  degree("CP", p.cp);
  out += fmt::format("DP{}", p.dp);
  if (p.zero_stage > 0) out += fmt::format(" ZeRO-{}", p.zero_stage);
  if (p.zero_stage > 0 && p.shard_degree > 0) out += fmt::format("/{}", p.shard_degree);
  out += fmt::format(" MBS{}", p.micro_batch);
  if (const std::vector<int>& counts = p.replica_microbatches; !counts.empty())
    out += fmt::format(" x {} to {}", std::ranges::min(counts), std::ranges::max(counts));
  if (!p.shard_weights.empty()) out += ", unequal shards";
  return out;
}

namespace {

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * std::abs(share)); }

// What of the layout the words of its degrees leave out, shortly.
std::string beside_words(const ParallelPlan& p) {
  std::vector<std::string> words;
  if (p.optimizer_offload > 0 || p.parameter_offload || p.activation_offload > 0)
    words.emplace_back("offload");
  if (p.recompute.kind != RecomputeKind::none)
    words.push_back(p.recompute.kind == RecomputeKind::selective ? "sel"
                    : p.recompute.layers < 0                     ? "full"
                                                                 : fmt::format("full{}", p.recompute.layers));
  return words.empty() ? "" : " " + fmt::format("{}", fmt::join(words, " "));
}

// Of each alternative; where these words are another's too, with those parts of its key that the other lacks: "offload oo100 ao46".
std::vector<std::string> distinct_words(const Recommendation& r) {
  struct Told {
    std::string words, key;
  };
  const auto told = [](const RankedPlan& p) {
    return Told{layout_words(p.plan) + beside_words(p.plan), plan_key(p.plan)};
  };
  std::vector<Told> all = {told(r.plan)};
  for (const OtherLayout& a : r.alternatives) all.push_back(told(a.plan));
  std::vector<std::string> out;
  for (std::size_t i = 1; i < all.size(); ++i) {
    std::string text = all[i].words;
    for (const std::string_view part : split(all[i].key, '.')) {
      const auto lacks = [&](const Told& other) {
        return other.words == all[i].words && std::ranges::count(split(other.key, '.'), part) == 0;
      };
      if (std::ranges::any_of(all, lacks)) text.append(" ").append(part);
    }
    out.push_back(std::move(text));
  }
  return out;
}

// "has an OOM risk of 13 % and keeps the optimizer on the host".
std::string what_speaks_against(const RankedPlan& r) {
  std::vector<std::string> reasons, on_host;
  if (const double risk = r.prediction.chance_of_overflow; risk >= kWorthPrinting)
    reasons.push_back("has an OOM risk of " + oom_risk_text(risk));
  if (r.plan.optimizer_offload > 0) on_host.emplace_back("optimizer state");
  if (r.plan.parameter_offload) on_host.emplace_back("parameters");
  if (r.plan.activation_offload > 0) on_host.emplace_back("activations");
  if (!on_host.empty()) reasons.push_back(fmt::format("keeps {} on the host", fmt::join(on_host, ", ")));
  return fmt::format("{}", fmt::join(reasons, " and "));
}

std::string reason_text(const Recommendation& r, const DecisionRule& rule) {
  const Prediction& p = r.plan.prediction;
  if (!r.safe)
    return fmt::format("no layout {} an OOM risk below {:g} %; this one has the least of those found.",
                       r.ended_early ? "was found with" : "has", 100 * rule.most_oom_chance);
  if (!r.features.empty()) {
    const std::string features = fmt::format("{}", fmt::join(r.features, ", "));
    if (r.plain)
      return fmt::format("with {} it is {} faster than the best safe layout without ({}).", features,
                         percent_text(r.plain->prediction.step / p.step - 1), layout_words(r.plain->plan));
    std::string text = fmt::format("it needs {}: no safe layout without {} nearly as fast.", features,
                                   r.ended_early ? "was found that is" : "is");
    if (r.fuller_host)
      text += fmt::format(" {} takes {} less, but {:.4g} GiB of each host's memory.",
                          layout_words(r.fuller_host->plan),
                          percent_text(1 - r.fuller_host->prediction.step / p.step),
                          gib(r.fuller_host->prediction.memory.host_of_node));
    return text;
  }
  if (r.on_paper) return "it is the fastest on paper, with room in memory and no unusual features.";
  // On the base of the table: the step of the recommended layout.
  const double less = r.plan.slower / (1 + r.plan.slower);
  const std::string price = less < 0.0005 ? "the fastest on paper is as fast"
                                          : "the fastest on paper takes " + percent_text(less) + " less";
  for (const OtherLayout& a : r.alternatives)
    if (a.kind == AlternativeKind::fastest_on_paper)
      if (const std::string against = what_speaks_against(a.plan); !against.empty())
        return fmt::format("{}, but {}.", price, against);
  return price + ".";
}

}  // namespace

std::string why_text(const Recommendation& r, const DecisionRule& rule) {
  const std::string why = reason_text(r, rule);
  return r.ended_early
             ? why +
                   " The search ended early: with more time (--budget-s SECONDS) it may find a better layout."
             : why;
}

std::string alternatives_table(const Terminal& terminal, const Recommendation& r) {
  if (r.alternatives.empty()) return "";
  Table table({{"or", Align::left},
               {"layout", Align::left},
               {"step s", Align::right},
               {"time", Align::right},
               {"GiB", Align::right},
               {"OOM", Align::right}});
  const std::vector<std::string> layouts = distinct_words(r);
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const OtherLayout& a = r.alternatives[i];
    const Prediction& p = a.plan.prediction;
    const double oom = p.chance_of_overflow;
    table.add_row({std::string(name(a.kind)), layouts[i], fmt::format("{:.3f}", p.step.v),
                   fmt::format("{:+.1f} %", 100 * a.plan.slower), fmt::format("{:.1f}", gib(p.memory.peak)),
                   oom < 0.005 ? "" : fmt::format("{:.0f} %", 100 * oom)});
  }
  return table.render(terminal);
}

std::string evidence_text(const Evidence& e, const std::string& stack, const std::string& generation) {
  std::string text;
  if (e.near == 0) {
    text = e.covering > 0
               ? fmt::format(
                     "evidence: no measured {} run has just these kinds of parallelism; {} combine them "
                     "with others",
                     generation, e.covering)
               : fmt::format("evidence: no measured {} run combines these kinds of parallelism", generation);
  } else {
    const int akin = e.near_of_stack - e.near_own;
    text = fmt::format("evidence: {} measured run{} like this on {}, {} of them by {}", e.near,
                       e.near == 1 ? "" : "s", generation,
                       e.near_own == 0 ? "none" : fmt::format("{}", e.near_own), stack);
    if (akin > 0) text += fmt::format(", {} of its code", akin);
  }
  if (!e.extrapolates.empty())
    text += fmt::format("; beyond all measured: {}", fmt::join(e.extrapolates, ", "));
  return text + ".";
}

nlohmann::ordered_json evidence_json(const Evidence& e) {
  return {{"runs_near", e.near},
          {"runs_near_of_stack", e.near_of_stack},
          {"runs_near_own", e.near_own},
          {"runs_of_stack", e.of_stack},
          {"extrapolates", e.extrapolates}};
}

nlohmann::ordered_json risk_json(const Prediction& p, const DecisionRule& rule, bool safe) {
  return {{"chance_of_overflow", p.chance_of_overflow},
          {"max_oom_chance", rule.most_oom_chance},
          {"safe", safe},
          {"uncertainty", std::string(name(p.uncertainty))},
          {"step_time_s_lower", p.step_lower.v},
          {"step_time_s_upper", p.step_upper.v}};
}

nlohmann::ordered_json recommendation_json(const Recommendation& r) {
  nlohmann::ordered_json j = ranked_json(r.plan);
  j["layout"] = layout_words(r.plan.plan) + ", " + memory_words(r.plan.plan);
  j["unusual_features"] = r.features;
  j["fastest_on_paper"] = r.on_paper;
  j["ended_early"] = r.ended_early;
  j["gained_by_features_share"] = nullptr;
  if (r.plain) j["gained_by_features_share"] = r.plain->prediction.step / r.plan.prediction.step - 1;
  j["without_features"] = nullptr;
  if (r.plain) j["without_features"] = plan_key(r.plain->plan);
  return j;
}

}  // namespace sextant
