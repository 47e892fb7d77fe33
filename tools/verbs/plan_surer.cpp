// What `sextant plan --details` says of layouts that surely fit, or are known better.
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
    a.say(fmt::format("--max-oom-chance {:g} asks for the fastest that surely fits (less than 1 in 20){}.",
                      kSurelyFits, ranked.size() == 1 ? "" : ", as none of these does"));
  else
    a.say(fmt::format(
        "the fastest of these that surely fits (less than 1 in 20) is #{}: {} (+{:.1f} %, {:.1f} GiB). "
        "--max-oom-chance {:g} ranks such layouts alone.",
        safe - ranked.begin() + 1, plan_key(safe->plan), 100 * safe->slower,
        gib(safe->prediction.memory.peak), kSurelyFits));
}

std::optional<RankedPlan> surer_plan(const Asking& a, const SearchReport& report) {
  SearchOptions how = a.searching.options(1, "surer ties");
  if (a.options.budget_s == 0) how.budget_s = std::max(1e-6, a.options.patience_s - report.wall_s);
  auto surer = surer_plan(a.planning.job(), a.question().limits, report.ranked, how);
  if (surer) use_covariance(a.session, a.options.question, a.question(), surer->plan, surer->prediction);
  return surer;
}

bool only_surer_fits(const RankedPlan& surer, const RankedPlan& best) {
  return best.prediction.chance_of_overflow >= kSurelyFits &&
         surer.prediction.chance_of_overflow < kSurelyFits;
}

void print_surer(const Asking& a, const RankedPlan& surer, const RankedPlan& best) {
  const Prediction &first = best.prediction, &tie = surer.prediction;
  const auto percent = [](const Prediction& p) { return 100 * (p.step_upper / p.step - 1); };
  const std::string overflow = overflow_text(tie.chance_of_overflow), why(reason(first.uncertainty));
  const std::string apart = to_string(told_apart(surer.plan, best.plan));
  const std::string fits =
      only_surer_fits(surer, best) ? fmt::format(" --max-oom-chance {:g}", kSurelyFits) : "";
  const std::string unsure =
      known_better(tie, first)
          ? fmt::format("is uncertain to {:.0f} %{}", percent(first), why.empty() ? "" : ", since " + why)
          : "may run out of memory";
  a.say(
      fmt::format("ties with #1 and is surer: {} (+{:.1f} %, within {:.3f} to {:.3f} s, {}); #1 {}."
                  "{}",
                  plan_key(surer.plan), 100 * surer.slower, tie.step_lower.v, tie.step_upper.v,
                  overflow.empty() ? "less than 1 in 20 to run out of memory" : overflow, unsure,
                  apart.empty() ? "" : fmt::format(" --fix {}{} asks for its kind.", apart, fits)));
}

}  // namespace sextant
