// What `sextant plan --details` says of layouts whose OOM risk is lower, or that are known better.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/plan/plan_key.hpp"
#include "planner/answers/shortlist.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/verbs/plan_answers.hpp"

namespace sextant {

std::vector<RankedPlan>::const_iterator fastest_safe(const std::vector<RankedPlan>& ranked) {
  return std::ranges::find_if(
      ranked, [](const RankedPlan& r) { return r.prediction.chance_of_overflow < kSurelyFits; });
}

void print_safe(const Asking& a, const std::vector<RankedPlan>& ranked) {
  const auto safe = fastest_safe(ranked);
  if (safe == ranked.begin()) return;
  if (safe == ranked.end())
    a.say(fmt::format("{} below 5 %. To require that: --max-oom-chance {:g}.",
                      ranked.size() == 1 ? "Its OOM risk is not" : "None of these has an OOM risk",
                      kSurelyFits));
  else
    a.say(
        fmt::format("the fastest of these with an OOM risk below 5 % is #{}: {} (+{:.1f} %, {:.1f} GiB). "
                    "To rank only such layouts: --max-oom-chance {:g}.",
                    safe - ranked.begin() + 1, plan_key(safe->plan), 100 * safe->slower,
                    gib(safe->prediction.memory.peak), kSurelyFits));
}

std::optional<RankedPlan> lower_risk_plan(const Asking& a, const SearchReport& report) {
  SearchOptions how = a.searching.options(1, "lower-risk ties");
  if (a.options.budget_s == 0) how.budget_s = std::max(1e-6, a.options.patience_s - report.wall_s);
  auto lower_risk = lower_risk_plan(a.planning.job(), a.question().limits, report.ranked, how);
  if (lower_risk)
    use_covariance(a.session, a.options.question, a.question(), lower_risk->plan, lower_risk->prediction);
  return lower_risk;
}

bool only_lower_risk_fits(const RankedPlan& lower_risk, const RankedPlan& best) {
  return best.prediction.chance_of_overflow >= kSurelyFits &&
         lower_risk.prediction.chance_of_overflow < kSurelyFits;
}

void print_lower_risk(const Asking& a, const RankedPlan& lower_risk, const RankedPlan& best) {
  const Prediction &first = best.prediction, &tie = lower_risk.prediction;
  const auto percent = [](const Prediction& p) { return 100 * (p.step_upper / p.step - 1); };
  const std::string overflow = overflow_text(tie.chance_of_overflow), why(reason(first.uncertainty));
  const std::string apart = to_string(told_apart(lower_risk.plan, best.plan));
  const std::string fits =
      only_lower_risk_fits(lower_risk, best) ? fmt::format(" --max-oom-chance {:g}", kSurelyFits) : "";
  const std::string unsure =
      known_better(tie, first)
          ? fmt::format("is uncertain to {:.0f} %{}", percent(first), why.empty() ? "" : ", since " + why)
          : "may run out of memory";
  a.say(
      fmt::format("ties with #1 at lower risk: {} (+{:.1f} %, within {:.3f} to {:.3f} s, {}); #1 {}."
                  "{}",
                  plan_key(lower_risk.plan), 100 * lower_risk.slower, tie.step_lower.v, tie.step_upper.v,
                  overflow.empty() ? "OOM risk below 5 %" : overflow, unsure,
                  apart.empty() ? "" : fmt::format(" --fix {}{} asks for its kind.", apart, fits)));
}

}  // namespace sextant
