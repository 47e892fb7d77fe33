// The fastest layouts, and what all answers share.
#include "tools/verbs/plan_answers.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "planner/answers/scale.hpp"
#include "planner/answers/shortlist.hpp"
#include "planner/answers/sub_cluster.hpp"
#include "planner/explain/framework_setting.hpp"
#include "planner/search/search_budget.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/output/goodput_text.hpp"
#include "tools/output/layout_table.hpp"
#include "tools/output/training_time.hpp"
#include "tools/verbs/fewer_gpus.hpp"
#include "tools/verbs/plan_today.hpp"

namespace sextant {

namespace {
using Json = nlohmann::ordered_json;

void print_mfu(const Asking& a) {
  a.out() << '\n';
  a.say(
      "MFU: model FLOPs (6 x matrix parameters with the LM head, plus attention in full, nothing recomputed) "
      "against the dense 16-bit peak.");
}

}  // namespace

namespace {

// The layouts worth trying, as plan files with a place for what will be measured.
void write_shortlist(const Asking& a, const SearchReport& report, const RankedPlan& advice) {
  std::vector<RankedPlan> pool = report.ranked;
  const auto known = [&](const RankedPlan& r) {
    return std::any_of(pool.begin(), pool.end(), [&](const RankedPlan& p) { return p.plan == r.plan; });
  };
  if (a.options.shortlist > 1)
    for (RankedPlan& r : other_kinds(a.planning.job(), a.question().limits, report.ranked.front(),
                                     a.searching.options(1, "other kinds")))
      if (!known(r)) pool.push_back(std::move(r));
  std::stable_sort(pool.begin() + 1, pool.end(), [](const RankedPlan& x, const RankedPlan& y) {
    return x.prediction.step < y.prediction.step;
  });
  // What is recommended is worth trying first, whatever else is.
  std::vector<std::size_t> chosen = shortlist(pool, a.options.shortlist);
  const auto is_advice = [&](std::size_t i) { return pool[i].plan == advice.plan; };
  if (const auto at = std::ranges::find_if(chosen, is_advice); at != chosen.end()) {
    std::rotate(chosen.begin(), at, at + 1);
  } else {
    // In the place of its own kind: the others are to differ from it.
    const auto is_kin = [&](std::size_t i) {
      const ParallelPlan &p = pool[i].plan, &q = advice.plan;
      return p.tp == q.tp && p.pp == q.pp && p.zero_stage == q.zero_stage;
    };
    std::erase_if(chosen, is_kin);
    pool.push_back(advice);
    if (static_cast<int>(chosen.size()) >= a.options.shortlist) chosen.pop_back();
    chosen.insert(chosen.begin(), pool.size() - 1);
  }
  Shortlist list;
  for (const std::size_t i : chosen)
    list.plans.push_back({plan_file_of(a.session, a.question(), pool[i].plan, pool[i].prediction,
                                       step_breakdown(a.planning.job(), pool[i].plan).mean),
                          std::nullopt});
  save_shortlist(a.options.output, list);
}

}  // namespace

void write_plan(const Asking& a, int gpus, const RankedPlan& best) {
  if (a.options.output.empty()) return;
  Question sized = a.question();
  if (gpus != sized.cluster.gpus()) sized.cluster = sub_cluster(sized.cluster, gpus);
  const Planning planning(std::move(sized), a.session.presets());
  PlanFile file =
      plan_file_of(a.session, planning.question(), best.plan, best.prediction,
                   step_breakdown(planning.predicted_job(), best.plan).mean, a.options.jitter.rank_by());
  file.prediction.goodput =
      goodput(a.planning.job(), best.plan, best.prediction.step, a.options.goodput.kind());
  save_plan_file(a.options.output, file);
}

nlohmann::ordered_json ranked_json(const Asking& a, const RankedPlan& r) {
  Json j = ranked_json(r);
  add_goodput(j, a.planning.job(), r.plan, r.prediction.step, a.options.goodput.kind());
  if (!a.options.tokens.empty())
    j["training"] = training_time_json(a.options.tokens, a.question().training, a.question().cluster, r.plan,
                                       r.prediction);
  return j;
}

void print_best(const Asking& a, const RankedPlan& best) {
  const Prediction& p = best.prediction;
  a.say(fmt::format("best: {}", plan_key(best.plan)));
  a.say(
      fmt::format("step {:.3f} s, within {:.3f} to {:.3f} s in nine of ten cases; {:.1f} of {:.1f} GiB, most "
                  "of it {} of stage {}",
                  p.step.v, p.step_lower.v, p.step_upper.v, gib(p.memory.peak), gib(p.memory_available),
                  p.memory.largest, p.memory.stage));
  if (!a.options.tokens.empty())
    a.say(training_time_text(a.options.tokens, a.question().training, a.question().cluster, best.plan, p));
  if (p.predicted_from)
    a.say(predicted_from_text(*a.question().profile, *p.predicted_from, &a.planning.costs()));
  if (p.jitter) a.say("this step is " + jitter_text(p));
  if (const auto text = framework_setting(best.plan, a.question().training, a.question().stack);
      !text.empty())
    a.say(text);
  if (const auto text = overflow_text(p.chance_of_overflow); !text.empty()) a.say(text);
  if (const auto text = goodput_text(a.planning.job(), best.plan, p.step, a.options.goodput.kind());
      !text.empty())
    a.say(text);
}

namespace {

// What is proved of the space, and how the first came to lie beside it.
void print_beside(const Asking& a, const SearchReport& report, std::string_view when) {
  const RankedPlan& first = report.ranked.front();
  const auto seconds = [&](Seconds simulated) {
    return measured_step(a.planning.job(), first.plan, simulated).v;
  };
  if (report.exact)
    a.say(fmt::format("No layout of this space, {}, is faster{} than {:.3f} s under the model: proved in {}.",
                      !first.before_moves        ? "on the search grid"
                      : !first.before_refinement ? "whose stages are even or balanced"
                                                 : "on the search grid and with even or balanced stages",
                      when, report.best_bound.v, duration_text(report.wall_s)));
  const auto gained = [&](std::string_view what, Seconds after, Seconds before, std::uint64_t simulated) {
    a.say(fmt::format("{}: {:.3f} -> {:.3f} s ({} layouts simulated; a local search, no proof).", what,
                      seconds(before), seconds(after), with_thousands(simulated)));
  };
  if (first.before_refinement)
    gained("Off-grid refinement", first.before_moves.value_or(first.simulated), *first.before_refinement,
           report.refined);
  if (first.before_moves)
    gained("Layers moved between stages", first.simulated, *first.before_moves, report.moved);
}

}  // namespace

void print_search(const Asking& a, const SearchReport& report, std::string_view when) {
  a.say(fmt::format("{} layouts: {}.", count_text(report.space), outcomes_text(report.outcomes)));
  const bool beside = !report.ranked.empty() && report.ranked.front().off_grid();
  if (report.exact && !beside) {
    a.say(fmt::format(
        "No other layout of this space, on the search grid, is faster{} under the model: proved in {}.", when,
        duration_text(report.wall_s)));
    if (const std::uint64_t tried = report.refined + report.moved; tried > 0)
      a.say(
          fmt::format("Off it nothing faster was found ({} layouts simulated): a local search, no "
                      "proof.",
                      with_thousands(tried)));
  } else if (!report.exact)
    a.say(fmt::format(
        "Not proved best: {}. No layout of the space, on the search grid, is faster{} than {:.3f} s.{}",
        report.stopped, when, report.best_bound.v,
        report.stopped == kTimeSpent && a.options.budget_s == 0
            ? " --budget-s SECONDS gives the search another time than half a minute."
            : ""));
  if (report.exact && report.others_share > 0 && report.ranked.size() > 1)
    a.say(
        fmt::format("Each of the others is within {:.2g} % of the best of its layout family; closer was not "
                    "searched for.",
                    100 * report.others_share));
  if (beside) print_beside(a, report, when);
}

void print_next(const Asking& a, int gpus, const ParallelPlan& plan) {
  std::string arguments;
  const Question& q = a.question();
  if (a.options.output.empty()) {
    arguments = gpus == q.cluster.gpus() ? question_arguments(a.session, a.options.question)
                                         : sized_arguments(a.session, a.options.question, q.cluster, gpus);
    arguments += " --plan " + plan_key(plan);
  } else {
    a.out() << "\nwritten: " << a.options.output;
    arguments = " --plan " + a.options.output;
  }
  if (!a.options.output.empty() && q.profile) arguments += " --profile " + q.profile->file;
  const bool ranked = a.options.output.empty() && !a.options.jitter.ranked_by.empty();
  const int columns = a.session.terminal.columns;
  a.out() << '\n'
          << command_lines(columns, "next: ", "sextant simulate" + arguments + " --trace step.json.gz")
          << command_lines(
                 columns, "      ",
                 "sextant explain" + arguments + (ranked ? " --rank-by " + a.options.jitter.ranked_by : ""));
}

nlohmann::ordered_json answer_json(const Asking& a, const std::vector<RankedPlan>& ranked,
                                   const SearchReport& report) {
  Json j = question_json(a.question());
  if (const auto today = todays_layout(a.planning)) j["today"] = today_json(*today);
  j["objective"] = a.options.objective;
  j["ranked"] = Json::array();
  for (const RankedPlan& r : ranked) j["ranked"].push_back(ranked_json(a, r));
  if (const auto safe = fastest_safe(ranked); !ranked.empty())
    j["fastest_safe"] = safe == ranked.end() ? Json(nullptr) : Json(plan_key(safe->plan));
  if (const auto tie = lower_risk_tie(ranked)) j["lower_risk_tie"] = plan_key(ranked[*tie].plan);
  j.update(report_json(report));
  return j;
}

ExitCode finished(const Asking& a, Answered answered) {
  if (a.searching.interrupted()) return ExitCode::interrupted;
  return answered.found ? ExitCode::ok : ExitCode::no_feasible_plan;
}

ExitCode nothing(const Asking& a, const SearchReport& report) {
  if (!a.session.common.json)
    return print_nothing(a.session, "plan", a.planning, a.space, report, a.searching, a.options.question);
  Json j = answer_json(a, {}, report);
  if (const auto n = what_would_fit(a.planning, a.space, report, a.searching)) {
    if (n->fewer_gpus) j["fewer_gpus"] = fewer_json(a, *n->fewer_gpus);
    Json fit = {{"memory_GiB", nullptr},
                {"key", nullptr},
                {"step_time_s", nullptr},
                {"cause", n->cause.empty() ? Json(nullptr) : Json(n->cause)},
                {"gpus", n->fewest.found ? Json(n->fewest.found->gpus) : Json(nullptr)},
                {"all_sizes_tried", n->fewest.exact},
                {"all_sizes_tried_to", n->fewest.every_to}};
    if (n->closest) {
      fit["memory_GiB"] = gib(n->needed);
      fit["key"] = plan_key(*n->closest);
      fit["step_time_s"] = n->step.v;
    }
    j["would_fit"] = fit;
  }
  a.searching.finish();
  print_json(a.session, "plan", j);
  return finished(a, {.found = false});
}

void print_ranking(const Asking& a, const std::vector<RankedPlan>& ranked) {
  std::vector<Column> after = {{"slower %"}};
  const bool profiled = a.question().profile.has_value();
  if (profiled) after.insert(after.end(), {{"measured %"}, {"interpolated %", Align::right, 3}});
  LayoutTable table({{"#"}}, after);
  int rank = 0;
  for (const RankedPlan& r : ranked) {
    ++rank;
    std::vector<std::string> cells = {slower_text(r, rank == 1)};
    if (profiled)
      for (const double share :
           {r.prediction.predicted_from->measured, r.prediction.predicted_from->interpolated})
        cells.push_back(fmt::format("{:.0f}", 100 * share));
    table.add({fmt::format("{}", rank)}, r, cells, rank == 1);
  }
  a.say_question();
  a.out() << '\n' << table.render(a.session.terminal, a.session.common.wide) << '\n';
}

namespace {

constexpr double kWellMeasured = 0.5;  // share of a step's time

// What ties with the first of a ranking by measured times, for which nothing can be searched, at lower risk.
std::optional<RankedPlan> lower_risk_of(const std::vector<RankedPlan>& ranked) {
  const auto tie = lower_risk_tie(ranked);
  return tie ? std::optional(ranked[*tie]) : std::nullopt;
}

// What was found, ranked, and what is advised of it.
struct FastestAnswer {
  SearchReport report;  // its first --top
  std::optional<RankedAnew> anew;
  Recommendation advice;
  std::optional<RankedPlan> lower_risk;  // with --details
  std::optional<ScalePoint> fewer;       // GPUs
  const RankedPlan& best() const { return report.ranked.front(); }
};

Json fastest_json(const Asking& a, const FastestAnswer& f) {
  Json j = answer_json(a, f.report.ranked, f.report);
  add_recommendation(a, f.advice, j);
  if (f.fewer) j["fewer_gpus"] = fewer_json(a, *f.fewer);
  if (f.lower_risk) {
    j["lower_risk"] = ranked_json(a, *f.lower_risk);
    j["lower_risk"]["fix"] = to_string(told_apart(f.lower_risk->plan, f.best().plan));
    if (only_lower_risk_fits(*f.lower_risk, f.best())) j["lower_risk"]["max_oom_chance"] = kSurelyFits;
  }
  if (f.anew) {
    j["best_bound_s"] = nullptr;
    j["profile"] = profile_json(*a.question().profile, a.planning.costs());
    j["ranked_anew"] = ranked_anew_json(*f.anew);
  }
  return j;
}

void print_ranked_anew(const Asking& a, const FastestAnswer& f) {
  if (f.best().prediction.predicted_from->measured < kWellMeasured)
    a.say(
        "Much of the first one's time was not measured: -o FILE keeps the plan, and sextant profile --for "
        "FILE, with --for again for others, measures it.");
  a.say(fmt::format("{} layouts: {}.", count_text(f.report.space), outcomes_text(f.report.outcomes)));
  a.say(ranked_anew_text(a.planning, *f.anew));
}

// Why the first that is no tie with the best is slower.
void print_first_slower(const Asking& a, const std::vector<RankedPlan>& ranked) {
  const auto slower =
      std::find_if(ranked.begin() + 1, ranked.end(), [](const RankedPlan& r) { return !r.tie; });
  if (slower == ranked.end()) return;
  const Comparison c = compare(a.planning.predicted_job(), ranked.front().plan, slower->plan);
  a.say(fmt::format("{} is {}", plan_key(slower->plan), c.text), 2);
}

// --details, and beside a shortlist.
void print_details(const Asking& a, const FastestAnswer& f) {
  print_ranking(a, f.report.ranked);
  print_best(a, f.best());
  a.say(fmt::format("recommended: {}", plan_key(f.advice.plan.plan)));
  print_safe(a, f.report.ranked);
  if (f.lower_risk) print_lower_risk(a, *f.lower_risk, f.best());
  if (f.fewer) print_fewer_gpus(a, *f.fewer, f.best());
  if (f.anew)
    print_ranked_anew(a, f);
  else
    print_search(a, f.report);
  print_first_slower(a, f.report.ranked);
  print_reasons(a.out(), a.session.terminal, f.report);
  print_mfu(a);
  if (a.options.shortlist > 0)
    a.say(fmt::format(
        "written: {}; run its plans, put the seconds into measured_step_s, and: sextant calibrate "
        "--tried {}",
        a.options.output, a.options.output));
  else
    print_next(a, a.question().cluster.gpus(), f.best().plan);
}

}  // namespace

ExitCode answer_fastest(const Asking& a) {
  const bool profiled = a.question().profile.has_value();
  // Near copies are passed over: a shortlist needs more layouts to choose from.
  const int wanted = profiled ? std::max(kRankedAnew, 2 * a.options.top)
                              : std::max({a.options.top, 6 * a.options.shortlist, kJudged});
  SearchOptions how = a.searching.options(wanted);
  if (a.options.budget_s == 0) how.budget_s = a.options.patience_s;
  if (!profiled && !a.options.daring) how = for_fastest(std::move(how));
  SearchReport report = search_possible(a.planning.job(), a.space, how);
  if (report.ranked.empty()) return nothing(a, report);
  std::optional<RankedAnew> anew;
  if (profiled)
    anew = rank_anew(a.planning.predicted_job(), RankBy::undisturbed, a.options.top, kTieShare, report);
  auto fewer = profiled ? std::nullopt : fewer_gpus(a, report);
  use_covariance(a.session, a.options.question, a.question(), report.ranked);
  Recommendation advice = recommendation(a, report);
  if (a.options.shortlist > 0) write_shortlist(a, report, advice.plan);
  if (report.ranked.size() > static_cast<std::size_t>(a.options.top))
    report.ranked.erase(report.ranked.begin() + a.options.top, report.ranked.end());
  auto lower_risk = !a.options.details ? std::nullopt
                    : profiled         ? lower_risk_of(report.ranked)
                                       : lower_risk_plan(a, report);
  a.searching.finish();
  if (a.options.shortlist == 0) write_plan(a, a.question().cluster.gpus(), advice.plan);
  const FastestAnswer f{std::move(report), std::move(anew), std::move(advice), std::move(lower_risk),
                        std::move(fewer)};
  if (a.session.common.json) {
    print_json(a.session, "plan", fastest_json(a, f));
  } else if (!a.options.details && a.options.shortlist == 0) {
    print_recommendation(a, f.advice, f.report, f.fewer);
    if (f.anew) a.say(ranked_anew_text(a.planning, *f.anew));
  } else {
    print_details(a, f);
  }
  return finished(a, {.found = true});
}

}  // namespace sextant
