// The layouts that bear a varying machine best, that need least memory, and that trade time against memory.
#include <algorithm>
#include <cmath>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/answers/robust_plans.hpp"
#include "planner/answers/scale.hpp"
#include "tools/output/layout_table.hpp"
#include "tools/output/training_time.hpp"
#include "tools/verbs/plan_answers.hpp"

namespace sextant {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

ExitCode answer_robust(const Asking& a) {
  const Job job = a.planning.job();
  const JitterSpec& jitter = a.question().cluster.jitter;
  require_jitter(a.options.jitter, jitter);
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  const RankBy by = a.options.jitter.rank_by();
  SteadyPlans steady = robust_plans(job, a.space, by, a.searching.options(a.options.top));
  std::vector<RankedPlan>& ranked = steady.report.ranked;
  if (ranked.empty()) return nothing(a, steady.report);
  use_covariance(a.session, a.options.question, a.question(), ranked);
  a.searching.finish();
  const RankedPlan& best = ranked.front();
  write_plan(a, a.question().cluster.gpus(), best);
  if (a.session.common.json) {
    Json j = answer_json(a, ranked, steady.report);
    j["rank_by"] = a.options.jitter.ranked_by;
    j["jitter"] = {{"compute_sigma", jitter.compute_sigma}, {"network_sigma", jitter.network_sigma}};
    j["sampled_layouts"] = steady.sampled;
    j["ranking_proved"] = steady.proved;
    print_json(a.session, "plan", j);
    return finished(a, {.found = true});
  }
  LayoutTable table({{"#"}}, {{"undisturbed s", Align::right, 3}, {"p90 s"}, {"slower %"}});
  int rank = 0;
  for (const RankedPlan& r : ranked) {
    ++rank;
    table.add({fmt::format("{}", rank)}, r,
              {fmt::format("{:.3f}", r.prediction.jitter->undisturbed.v),
               fmt::format("{:.3f}", r.prediction.jitter->p90.v), slower_text(r, rank == 1)},
              rank == 1);
  }
  a.say_question();
  a.say(fmt::format(
      "ranked by {} of {} steps under jitter; spread of each rank's compute {:g} %, of the network {:g} %",
      by == RankBy::p90 ? "the 90th percentile (p90 s)" : "the mean (step s)",
      best.prediction.jitter->samples, 100 * jitter.compute_sigma, 100 * jitter.network_sigma));
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
  print_best(a, best);
  print_safe(a, ranked);
  a.say(steady.undisturbed.plan == best.plan
            ? "Without jitter it is the best as well."
            : fmt::format("Without jitter {} is the best, with {:.3f} s.", plan_key(steady.undisturbed.plan),
                          steady.undisturbed.prediction.step.v));
  a.say(
      steady.proved
          ? fmt::format("The best of {} layouts that were sampled; every other kind takes at least {:.3f} s "
                        "even without jitter.",
                        steady.sampled, ranked_step(best.prediction, by).v)
          : fmt::format(
                "The best of {} layouts that were sampled; others were not, so that this is no proof.",
                steady.sampled));
  SearchReport undisturbed = steady.report;
  undisturbed.ranked = {steady.undisturbed};
  print_search(a, undisturbed, " without jitter");
  print_next(a, a.question().cluster.gpus(), best.plan);
  return finished(a, {.found = true});
}

ExitCode answer_lowest_memory(const Asking& a) {
  const Job job = a.planning.job();
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  LowestMemoryPlans lean = lowest_memory_plans(job, a.space, a.searching.options(a.options.top));
  if (lean.report.ranked.empty()) return nothing(a, lean.report);
  a.searching.finish();
  use_covariance(a.session, a.options.question, a.question(), lean.report.ranked);
  const RankedPlan& best = lean.report.ranked.front();
  write_plan(a, a.question().cluster.gpus(), best);
  if (a.session.common.json) {
    Json j = answer_json(a, lean.report.ranked, lean.report);
    j["least_memory_GiB"] = gib(lean.limit);
    j["no_layout_within_GiB"] = gib(lean.needs_more);
    print_json(a.session, "plan", j);
    return finished(a, {.found = true});
  }
  print_ranking(a, lean.report.ranked);
  print_best(a, best);
  // Rounded down, so that it holds as it is printed.
  const Bytes least = lean.proved ? lean.limit : lean.needs_more;
  a.say(fmt::format(
      "No layout needs less than {:.3f} GiB{}. --pareto trades time against memory.",
      std::floor(1000 * gib(least)) / 1000,
      lean.proved ? "; these need no more" : "; whether one needs less than these is not proved"));
  a.say(fmt::format("{} layouts: {}.", count_text(lean.report.space), outcomes_text(lean.report.outcomes)));
  if (!lean.report.exact)
    a.say(fmt::format("That the first is the {} is not proved: {}.",
                      lean.proved ? "fastest" : "lowest_memory", lean.report.stopped));
  print_next(a, a.question().cluster.gpus(), best.plan);
  return finished(a, {.found = true});
}

ExitCode answer_front(const Asking& a) {
  const Job job = a.planning.job();
  if (never_possible(job, a.space)) return nothing(a, search_possible(job, a.space, {}));
  const ParetoFront found = pareto_front(job, a.space, a.searching.options(1, "pareto"));
  if (found.plans.empty()) return nothing(a, search_possible(job, a.space, a.searching.options(1)));
  a.searching.finish();
  write_plan(a, a.question().cluster.gpus(), found.plans.front());
  if (a.session.common.json) {
    Json j = question_json(a.question());
    j["objective"] = a.options.objective;
    j["pareto"] = Json::array();
    j.update(report_json(found.report));
    j["exact"] = found.exact;
    for (const RankedPlan& r : found.plans) j["pareto"].push_back(ranked_json(a, r));
    print_json(a.session, "plan", j);
    return finished(a, {.found = true});
  }
  const std::string& tokens = a.options.tokens;
  std::vector<Column> after = {{"slower %"}};
  if (!tokens.empty()) after.push_back({fmt::format("days of {}", tokens), Align::right, 0});
  LayoutTable table({}, after);
  for (const RankedPlan& r : found.plans) {
    std::vector<std::string> cells = {slower_text(r, &r == &found.plans.front())};
    if (!tokens.empty())
      cells.push_back(
          training_days_text(tokens, a.question().training, a.question().cluster, r.plan, r.prediction));
    table.add({}, r, cells);
  }
  a.say_question();
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
  a.say(
      "Each layout needs at least 10 % less memory than the one above, and is the fastest on the search grid "
      "of "
      "this space that does.");
  if (const auto moved = std::ranges::count_if(found.plans, &RankedPlan::off_grid))
    a.say(
        fmt::format("Refined off the search grid or cut otherwise into stages, within that memory: {} of {} "
                    "({} such layouts "
                    "simulated), a local search, no proof.",
                    moved, found.plans.size(), with_thousands(found.report.moved + found.report.refined)));
  a.say(found.exact ? fmt::format("Within {:.2f} GiB every layout of this space takes more than 1.5 times "
                                  "the first one's step: proved.",
                                  gib(found.needs_more))
                    : "Stopped early: that the last is the fastest is not proved, and smaller layouts were "
                      "not looked for.");
  a.say(fmt::format("{} layouts: {}.", count_text(found.report.space), outcomes_text(found.report.outcomes)));
  print_next(a, a.question().cluster.gpus(), found.plans.front().plan);
  return finished(a, {.found = true});
}

}  // namespace sextant
