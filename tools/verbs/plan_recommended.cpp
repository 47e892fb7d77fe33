// The first answer of `sextant plan`: the layout to run, why, what else to try, on one screen.
#include <algorithm>
#include <ostream>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "planner/explain/framework_setting.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/output/goodput_text.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/output/training_time.hpp"
#include "tools/verbs/fewer_gpus.hpp"
#include "tools/verbs/plan_answers.hpp"
#include "tools/verbs/plan_today.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

// A screen: what is printed by default is no longer at 80 columns, where there are alternatives to leave out.
constexpr std::ptrdiff_t kScreenLines = 24;
constexpr std::size_t kFewestAlternatives = 3;

Evidence evidence_of(const Asking& a, const ParallelPlan& plan) {
  return evidence_of(a.planning.job(), load_evidence(a.session.presets()), plan);
}

// What the answer rests on beside what was asked: all notes but those of an import, which stand there already, and how far from
// measured runs it is, which the evidence says.
std::vector<std::string> assumptions(const Question& q) {
  std::vector<std::string> out;
  for (const std::string& note : q.notes)
    if (!note.starts_with("far from any measured run") &&
        !(q.from && std::ranges::count(q.from->notes, note) > 0))
      out.push_back(note);
  return out;
}

std::string found_text(const Asking& a, const SearchReport& report) {
  // Ranked anew by measured times, none is proved.
  const std::string proof =
      report.best_bound.v > 0
          ? fmt::format("; none on the search grid is faster than {:.3f} s{}", report.best_bound.v,
                        report.exact ? ", proved" : " (stopped early)")
          : "";
  return fmt::format("found: {} layouts, {} simulated in {}{}.", count_text(report.space),
                     report.outcomes[Outcome::simulated], duration_text(report.wall_s), proof) +
         (a.options.daring ? "" : " --daring: the fastest.");
}

}  // namespace

DecisionRule rule_of(const Asking& a) {
  DecisionRule rule = load_decision_rule(a.session.presets());
  if (a.options.max_oom_chance > 0) rule.most_oom_chance = a.options.max_oom_chance;
  return rule;
}

Recommendation recommendation(const Asking& a, const SearchReport& report) {
  if (a.options.daring) {
    Recommendation out;
    out.plan = report.ranked.front();
    out.on_paper = true;
    out.safe = out.plan.prediction.chance_of_overflow < kSurelyFits;
    out.features = unusual_features(a.planning.job(), load_evidence(a.session.presets()), out.plan.plan);
    for (std::size_t i = 1; i < report.ranked.size(); ++i)
      out.alternatives.push_back({AlternativeKind::other, report.ranked[i]});
    return out;
  }
  const bool profiled = a.question().profile.has_value();
  SearchOptions how = a.searching.options(1, "recommendation");
  if (a.options.budget_s == 0) how.budget_s = std::max(1e-6, a.options.patience_s - report.wall_s);
  Recommendation out = recommend(a.planning.job(), a.question().limits, report,
                                 {rule_of(a), load_evidence(a.session.presets())}, how, !profiled);
  const auto use = [&](RankedPlan& r) {
    use_covariance(a.session, a.options.question, a.question(), r.plan, r.prediction);
  };
  use(out.plan);
  for (OtherLayout& other : out.alternatives) use(other.plan);
  return out;
}

void add_recommendation(const Asking& a, const Recommendation& r, nlohmann::ordered_json& j) {
  const DecisionRule rule = rule_of(a);
  Json best = recommendation_json(r);
  best["why"] = a.options.daring ? "the fastest on paper, as --daring asks" : why_text(r, rule);
  j["recommended"] = best;
  j["risk"] = risk_json(r.plan.prediction, rule, r.safe);
  j["evidence"] = evidence_json(evidence_of(a, r.plan.plan));
  j["alternatives"] = Json::array();
  for (const OtherLayout& other : r.alternatives) {
    Json one = ranked_json(a, other.plan);
    one["kind"] = std::string(name(other.kind));
    one["layout"] = layout_words(other.plan.plan) + ", " + memory_words(other.plan.plan);
    j["alternatives"].push_back(one);
  }
}

void print_recommendation(const Asking& a, const Recommendation& r, const SearchReport& report,
                          const std::optional<ScalePoint>& fewer) {
  const Prediction& p = r.plan.prediction;
  const ParallelPlan& plan = r.plan.plan;
  std::ostringstream head, tail;
  const auto say = [&](std::ostream& out, const std::string& text) {
    print_wrapped(out, a.session.terminal, text);
  };
  say(head, question_text(a.question()));
  head << '\n';
  say(head, fmt::format("{} {}, {}", a.options.daring ? "fastest on paper:" : "run:", layout_words(plan),
                        memory_words(plan)));
  head << "     " << plan_key(plan) << '\n';
  say(head, fmt::format("step {:.3f} s (90 %: {:.3f} to {:.3f} s), {:.0f} tokens/s/GPU, MFU "
                        "{:.1f} %",
                        p.step.v, p.step_lower.v, p.step_upper.v, p.tokens_per_s_gpu, 100 * p.mfu));
  say(head, fmt::format("memory {:.1f} of {:.1f} GiB, OOM risk {}", gib(p.memory.peak),
                        gib(p.memory_available), oom_risk_text(p.chance_of_overflow)));
  if (!a.options.tokens.empty())
    say(head, training_time_text(a.options.tokens, a.question().training, a.question().cluster, plan, p));
  if (const auto today = todays_layout(a.planning)) say(head, today_text(*today, p.step));
  if (p.predicted_from)
    say(head, predicted_from_text(*a.question().profile, *p.predicted_from, &a.planning.costs()));
  if (const auto text = host_memory_text(p.memory, a.question().cluster.node); !text.empty()) say(head, text);
  if (const auto text = framework_setting(plan, a.question().training, a.question().stack); !text.empty())
    say(head, text);
  if (const auto text = layout_setting(plan, a.question().model, a.question().stack); !text.empty())
    say(head, text);
  if (const auto text = goodput_text(a.planning.job(), plan, p.step, a.options.goodput.kind()); !text.empty())
    say(head, text);
  if (!a.options.daring) say(head, "why: " + why_text(r, rule_of(a)));
  say(head,
      evidence_text(evidence_of(a, plan), a.question().stack.name, a.question().cluster.device.generation));
  if (a.question().from)
    for (const std::string& note : a.question().from->notes) say(head, "note: " + note);
  const std::vector<std::string> assumed = assumptions(a.question());
  for (const std::string& note : assumed) say(head, "note: " + note);
  head << '\n';
  say(tail, found_text(a, report));
  const std::string asked = a.options.output.empty() ? question_arguments(a.session, a.options.question) +
                                                           " --plan " + plan_key(plan)
                                                     : " --plan " + a.options.output;
  if (!a.options.output.empty()) tail << "written: " << a.options.output << '\n';
  tail << command_lines(a.session.terminal.columns, "next: ", "sextant explain" + asked);
  const std::size_t notes = a.question().notes.size() - assumed.size();
  say(tail, fmt::format("      --details prints the ranking{} and why others lost; -o FILE keeps the plan",
                        notes == 0 ? "" : fmt::format(", {} note{}", notes, notes == 1 ? "" : "s")));

  Recommendation shown = r;
  const auto lines = [](const std::string& text) { return std::ranges::count(text, '\n'); };
  std::string table = alternatives_table(a.session.terminal, shown);
  while (shown.alternatives.size() > kFewestAlternatives &&
         lines(head.str()) + lines(table) + 1 + lines(tail.str()) > kScreenLines) {
    shown.alternatives.pop_back();
    table = alternatives_table(a.session.terminal, shown);
  }
  a.out() << head.str();
  if (!table.empty()) a.out() << table << '\n';
  if (fewer) print_fewer_gpus(a, *fewer, r.plan);
  a.out() << tail.str();
}

}  // namespace sextant
