// `sextant explain`: why this layout, why not another one, and how firm the choice is.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/base/words.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/plan_key.hpp"
#include "planner/answers/goodput.hpp"
#include "planner/answers/recommend.hpp"
#include "planner/explain/framework_setting.hpp"
#include "planner/simulation/robust.hpp"
#include "tools/inputs/plan_options.hpp"
#include "tools/output/explained.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/output/time_rows.hpp"
#include "tools/terminal/table.hpp"
#include "tools/verbs/explain_decision.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

struct ExplainOptions {
  QuestionOptions question;
  JitterOptions jitter;
  std::string layout;  // the positional one
  std::vector<std::string> why;
  std::string output;
  double budget_s = 0;
  int top = 5;
  int decision = -1;
  bool quick = false;
};

FilledPlan read_key(const std::string& text, const Question& q) {
  FilledPlan filled;
  with_file("--why", [&] { filled = fill_plan_key(text, q.stack, q.cluster.gpus()); });
  return filled;
}

// Of a layout that was given: what `sextant plan` answers to the same question. Not under jitter or by a profile, where it ranks otherwise.
std::optional<Recommended> recommended(const Planning& planning, const Explained& e,
                                       const DecisionBasis& basis, Searching& searching) {
  const Question& q = planning.question();
  if (!q.plan || q.profile || e.by != RankBy::undisturbed || e.found.report.ranked.empty() ||
      searching.stopped())
    return std::nullopt;
  const Job job = planning.job();
  Recommended out{
      recommend(job, q.limits, e.found.report, basis, searching.options(1, "recommendation")).plan.plan, {}};
  if (!(out.plan == e.chosen)) out.comparison = compare(job, e.chosen, out.plan, e.by);
  return out;
}

Explained explain(const Planning& planning, const ExplainOptions& options, RankBy by, SteadyPlans found,
                  const DecisionBasis& basis, Searching& searching) {
  const Question& q = planning.question();
  const Job searched = planning.job(), job = planning.predicted_job();
  Explained e;
  e.by = by, e.found = std::move(found);
  if (q.profile && !e.found.report.ranked.empty()) {
    e.anew = rank_anew(job, by, options.top, kTieShare, e.found.report);
    e.found.proved = false;
  }
  const std::vector<RankedPlan>& ranked = e.found.report.ranked;
  const ParallelPlan& best = ranked.empty() ? *q.plan : ranked.front().plan;
  e.chosen = q.plan.value_or(best);
  e.own = why_not(job, e.chosen, best, by);
  // A choice that cannot run is no measure for another one.
  for (const auto& key : options.why) {
    const FilledPlan filled = read_key(key, q);
    e.why.push_back({filled.plan, why_not(job, filled, e.own.rejection ? best : e.chosen, by), filled.notes});
    Asked& asked = e.why.back();
    if (q.profile && asked.answer.comparison) asked.rests_on = predict(job, filled.plan).rests_on;
  }
  if (e.own.rejection) return e;
  e.prediction = predict_under(job, e.chosen, by);
  e.time = step_breakdown(job, e.chosen).mean;
  e.recommended = recommended(planning, e, basis, searching);
  for (const RankedPlan& r : ranked)
    if (!(r.plan == e.chosen)) e.runners_up.push_back(compare(job, e.chosen, r.plan, by));
  if (options.quick) return e;
  if (!searching.stopped())
    e.alternatives = alternatives(searched, q.limits, e.chosen, e.chosen.world(),
                                  searching.options(1, "other fields"), by);
  if (q.profile)  // found by the analytic model, and compared by the table
    for (Alternative& a : e.alternatives)
      if (a.exact = false; a.plan) a.comparison = compare(job, e.chosen, a.plan->plan, by);
  if (!searching.stopped())
    e.sensitivities = sensitivities(
        searched, default_space(q.model, q.training, q.cluster.device, e.chosen.world(), q.limits), e.chosen,
        searching.options(1, "other machines"), by);
  e.stopped = searching.stopped();
  return e;
}

std::string change_text(double share) {
  return std::abs(share) < kTieShare
             ? fmt::format("a tie ({:+.1f} %)", 100 * share)
             : fmt::format("{:.1f} % {}", 100 * std::abs(share), share > 0 ? "slower" : "faster");
}

// "exposed tp +1.2 s (TP over 2 nodes); bubble -0.1 s", without the verdict before it.
std::string cause(const Comparison& c) {
  const std::size_t colon = c.text.find(": ");
  return colon == std::string::npos ? "" : c.text.substr(colon + 2);
}

void print_comparison(Session& session, const Comparison& c, RankBy by) {
  Table table(
      {{"seconds", Align::left}, {"chosen"}, {"this one"}, {"difference"}, {"because", Align::left, 1}});
  std::vector<TimeTerm> terms = c.terms;
  std::stable_sort(terms.begin(), terms.end(), [](const TimeTerm& a, const TimeTerm& b) {
    return std::abs(a.seconds) > std::abs(b.seconds);
  });
  for (const TimeTerm& t : terms) {
    const auto i = static_cast<std::size_t>(t.category);
    if (c.best[i] == 0 && c.other[i] == 0) continue;
    table.add_row({words(name(t.category)), fmt::format("{:.3f}", c.best[i]),
                   fmt::format("{:.3f}", c.other[i]), fmt::format("{:+.3f}", t.seconds),
                   t.seconds > 0 ? t.cause : ""});
  }
  const auto add = [&](const std::string& what, double best, double other) {
    table.add_row({what, fmt::format("{:.3f}", best), fmt::format("{:.3f}", other),
                   fmt::format("{:+.3f}", other - best), ""});
  };
  if (by != RankBy::undisturbed) add("jitter", c.best_jitter.v, c.other_jitter.v);
  const TimeRow beside = time_rows(c.best, c.best_step, c.best_jitter).back();
  add(beside.what, beside.seconds, time_rows(c.other, c.other_step, c.other_jitter).back().seconds);
  add(by == RankBy::undisturbed ? "step"
                                : fmt::format("step, {}", kRankByNames[static_cast<std::size_t>(by)]),
      c.best_step.v, c.other_step.v);
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide);
}

void print_memory(Session& session, const WhyNot& w) {
  Table table({{"GiB of the heaviest stage", Align::left}, {"chosen"}, {"this one"}});
  Bytes best{0}, other{0};
  for (const MemoryTerm& t : w.memory) {
    best += t.best, other += t.other;
    table.add_row({words(t.what), fmt::format("{:.2f}", gib(t.best)), fmt::format("{:.2f}", gib(t.other))});
  }
  table.add_row({"peak", fmt::format("{:.2f}", gib(best)), fmt::format("{:.2f}", gib(other))});
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide);
}

void print_why(Session& session, const Question& q, const Asked& asked, RankBy by) {
  auto& out = session.terminal.out;
  out << '\n';
  print_wrapped(out, session.terminal,
                paint(session.terminal.color, Style::bold, "why not " + plan_key(asked.plan)));
  for (const auto& line : asked.answer.lines) print_wrapped(out, session.terminal, words(line), 2);
  if (asked.rests_on)
    print_wrapped(out, session.terminal, "its step " + rests_on_text(*q.profile, *asked.rests_on), 2);
  for (const auto& note : asked.notes) print_wrapped(out, session.terminal, "note: " + note, 2);
  if (asked.answer.comparison && asked.answer.verdict != Verdict::best)
    out << '\n', print_comparison(session, *asked.answer.comparison, by);
  if (!asked.answer.memory.empty()) out << '\n', print_memory(session, asked.answer);
}

void print_choice(Session& session, const Planning& planning, const Explained& e) {
  auto& out = session.terminal.out;
  const auto paragraph = [&](const std::string& text, int indent = 0) {
    print_wrapped(out, session.terminal, text, indent);
  };
  const Prediction& p = e.prediction;
  paragraph(paint(session.terminal.color, Style::bold, "why " + plan_key(e.chosen)));
  paragraph(fmt::format("{:.3f} s a step, {:.1f} of {:.1f} GiB (most of it {} of stage {})", p.step.v,
                        gib(p.memory.peak), gib(p.memory_available), p.memory.largest, p.memory.stage),
            2);
  if (const auto text = host_memory_text(p.memory, planning.question().cluster.node); !text.empty())
    paragraph(text, 2);
  if (p.rests_on) paragraph("this step " + rests_on_text(*planning.question().profile, *p.rests_on), 2);
  if (p.jitter) paragraph("this step is " + jitter_text(p), 2);
  if (e.calibrated)
    paragraph(fmt::format("{:.3f} to {:.3f} s in nine of ten cases, as the calibration leaves it",
                          p.step_lower.v, p.step_upper.v),
              2);
  std::vector<std::string> parts;
  for (const TimeRow& row : time_rows(e.time, p.step, p.step - ranked_step(p, RankBy::undisturbed)))
    if (row.share >= 0.001) parts.push_back(fmt::format("{} {:.1f} %", row.what, 100 * row.share));
  paragraph(fmt::format("its time: {}", fmt::join(parts, ", ")), 2);
  if (e.recommended && !e.recommended->comparison) paragraph("it is what 'sextant plan' recommends", 2);
  if (e.recommended && e.recommended->comparison) {
    const Comparison& c = *e.recommended->comparison;
    paragraph(fmt::format("'sextant plan' recommends {}: {}; {}", plan_key(e.recommended->plan),
                          change_text(c.slower), cause(c)),
              2);
  }
  const SearchReport& report = e.found.report;
  const RankedPlan* best = report.ranked.empty() ? nullptr : &report.ranked.front();
  const bool jittered = p.jitter.has_value();
  const std::string space = jittered
                                ? fmt::format("{} layouts that were sampled under jitter", e.found.sampled)
                                : fmt::format("{} layouts", count_text(report.space));
  const std::string proof = !report.exact    ? "not proved: " + report.stopped
                            : e.found.proved ? "proved, on the search grid"
                                             : "no proof: others were not sampled";
  const std::string_view fastest = e.by == RankBy::p90 ? "best by p90"
                                   : jittered          ? "best by mean"
                                                       : "fastest";
  if (jittered) {
    if (e.own.verdict == Verdict::best)
      paragraph(fmt::format("the {} of {} ({})", fastest, space, proof), 2);
    else
      paragraph(fmt::format("of {} ({}) {} is the {}: this one is {}", space, proof, plan_key(best->plan),
                            fastest, words(e.own.lines.front())),
                2);
  } else if (e.own.verdict == Verdict::best && best && best->off_grid()) {
    paragraph(fmt::format("faster than the fastest of {} ({}): {} for as long as that helped", space, proof,
                          !best->before_refinement ? "single layers were moved from stage to stage"
                          : !best->before_moves
                              ? "it was moved off the search grid"
                              : "it was moved off the search grid, and single layers from stage to stage"),
              2);
  } else if (e.own.verdict == Verdict::best) {
    paragraph(fmt::format("the fastest of {} ({})", space, proof), 2);
  } else {
    paragraph(fmt::format("of {} ({}) the fastest is {}: this one is {}", space, proof, plan_key(best->plan),
                          words(e.own.lines.front())),
              2);
    if (!e.chosen.chunks.empty() && p.step < best->prediction.step)
      paragraph(
          "its stages are cut by hand: the search tries equal ones, those balanced by time, and from the "
          "best of "
          "them on, single layers moved",
          2);
  }
  if (e.anew) paragraph(ranked_anew_text(planning, *e.anew), 2);
  std::size_t next = 0;
  for (const RankedPlan& r : report.ranked) {
    if (r.plan == e.chosen) continue;
    if (next == 0) out << "\nnext to it\n";
    const Comparison& c = e.runners_up[next++];
    paragraph(fmt::format("{}: {}; {}", plan_key(r.plan), change_text(c.slower), cause(c)), 2);
  }
}

void print_alternatives(Session& session, const Explained& e) {
  if (e.alternatives.empty()) return;
  auto& out = session.terminal.out;
  const bool sampled = e.by != RankBy::undisturbed;
  out << fmt::format("\nwith another value of one field, the best{} would be\n",
                     sampled ? " of those sampled" : "");
  for (const Alternative& a : e.alternatives) {
    const std::string head = fmt::format("{} {}: ", a.field, a.other);
    if (!a.plan)
      print_wrapped(out, session.terminal, head + (a.exact ? "nothing fits" : "nothing found in time"), 2);
    else
      print_wrapped(
          out, session.terminal,
          fmt::format("{}{}, {}{}; {}", head, plan_key(a.plan->plan), change_text(a.comparison->slower),
                      a.exact || sampled ? "" : " (not proved)", cause(*a.comparison)),
          2);
  }
}

void print_sensitivities(Session& session, const Explained& e) {
  if (e.sensitivities.empty()) return;
  auto& out = session.terminal.out;
  out << fmt::format("\non a slightly different machine{}\n", e.anew ? ", by the analytic model alone" : "");
  for (const Sensitivity& s : e.sensitivities) {
    std::string text = fmt::format("{}: ", s.what);
    if (s.same || !s.plan)
      text += s.text;
    else if (!s.possible)
      text += fmt::format("it no longer fits; {} would be best", plan_key(*s.plan));
    else if (s.as_today)
      text += fmt::format("no new choice; {} is {:.1f} % faster, as it is today", plan_key(*s.plan),
                          100 * s.regret);
    else if (s.regret < kTieShare)
      text += fmt::format("a tie with {} ({:.1f} %)", plan_key(*s.plan), 100 * s.regret);
    else
      text += fmt::format("{} would be best, {}", plan_key(*s.plan), s.text);
    // Of the layout that one would have there.
    const double step = s.as_today ? (1 + s.slower) * (1 + s.regret) - 1 : s.slower;
    if (s.plan) text += fmt::format("; step {:+.1f} % from today", 100 * step);
    print_wrapped(out, session.terminal,
                  text + (s.exact || e.by != RankBy::undisturbed ? "" : " (not proved)"), 2);
  }
}

// As the options say, or the plan file; with a note where jitter is stated that no step shows.
RankBy rank_by(const JitterOptions& options, Question& q) {
  require_jitter(options, q.cluster.jitter);
  if (!options.ranked_by.empty() || q.cluster.jitter == JitterSpec{}) return options.rank_by();
  if (q.file && q.file->prediction.jitter) return q.file->prediction.jitter->rank_by;
  q.notes.emplace_back(kJitterUnread);
  return RankBy::undisturbed;
}

SteadyPlans look_for_best(const Job& job, const SearchSpace& space, RankBy by, const SearchOptions& options) {
  if (!never_possible(job, space)) return robust_plans(job, space, by, options);
  SteadyPlans none;
  none.report = search_possible(job, space, options);
  return none;
}

ExitCode run(Session& session, ExplainOptions options) {
  if (options.decision >= 0) return explain_decision(session, options.layout, options.decision);
  take_layout(options.layout, options.question);
  settle(options.jitter, options.question);
  options.question.samples_jitter = true;  // its note is rank_by's
  Question asked = read_question(options.question, session.presets());
  check_output("--output", options.output, files_read(options.question));
  const RankBy by = rank_by(options.jitter, asked);
  const Planning planning(std::move(asked), session.presets());
  const Question& q = planning.question();
  for (const auto& key : options.why) read_key(key, q);  // a slip shows before the search
  Searching searching(session.terminal, options.budget_s);
  const int world = q.plan && q.plan->world() <= q.cluster.gpus() ? q.plan->world() : q.cluster.gpus();
  const SearchSpace space = default_space(q.model, q.training, q.cluster.device, world, q.limits);
  const int top = q.profile ? std::max(kRankedAnew, 2 * options.top) : options.top;
  SteadyPlans found = look_for_best(planning.job(), space, by, searching.options(top));
  const SearchReport& report = found.report;
  if (report.ranked.empty() && !q.plan && !session.common.json)
    return print_nothing(session, "explain", planning, space, report, searching, options.question);
  if (report.ranked.empty() && !q.plan) {
    print_json(session, "explain", nothing_json(q, report));
    return searching.interrupted() ? ExitCode::interrupted : ExitCode::no_feasible_plan;
  }
  const DecisionBasis basis{load_decision_rule(session.presets()), load_evidence(session.presets())};
  Explained e = explain(planning, options, by, std::move(found), basis, searching);
  if (!e.own.rejection)
    e.calibrated = use_covariance(session, options.question, q, e.chosen, e.prediction).has_value();
  searching.finish();
  const bool writes = !options.output.empty() && !e.own.rejection;  // what cannot run is no plan
  if (writes) {
    PlanFile file = plan_file_of(session, q, e.chosen, e.prediction, e.time, by);
    file.prediction.goodput = goodput(planning.job(), e.chosen, e.prediction.step);
    save_plan_file(options.output, file);
  }
  const Evidence evidence = basis.evidence.of(q.stack.name, q.cluster.device.generation, e.chosen);
  if (session.common.json) {
    nlohmann::ordered_json answer = explained_json(q, e);
    if (!e.own.rejection) {
      const DecisionRule& rule = basis.rule;
      answer["risk"] = risk_json(e.prediction, rule, e.prediction.chance_of_overflow < rule.most_oom_chance);
      answer["evidence"] = evidence_json(evidence);
    }
    if (q.profile) answer["profile"] = profile_json(*q.profile, planning.costs());
    if (e.anew) {
      answer["best_bound_s"] = nullptr;
      answer["ranked_anew"] = ranked_anew_json(*e.anew);
    }
    print_json(session, "explain", answer);
  } else {
    auto& out = session.terminal.out;
    print_wrapped(out, session.terminal, question_text(q));
    print_notes(session, q);
    if (const std::string text = framework_setting(e.chosen, q.training); !text.empty() && !e.own.rejection)
      print_wrapped(out, session.terminal, "note: " + text);
    if (!e.own.rejection)
      print_wrapped(out, session.terminal,
                    evidence_text(evidence, q.stack.name, q.cluster.device.generation));
    if (const std::string text = layout_setting(e.chosen, q.model, q.stack);
        !text.empty() && !e.own.rejection)
      print_wrapped(out, session.terminal, "note: " + text);
    out << '\n';
    if (e.own.rejection)
      print_why(session, q, {e.chosen, e.own, {}}, by);
    else
      print_choice(session, planning, e);
    for (const Asked& why : e.why) print_why(session, q, why, by);
    print_alternatives(session, e);
    print_sensitivities(session, e);
    if (e.stopped) out << "\nstopped early: not every question was asked\n";
    if (writes) out << "\nwritten: " << options.output << '\n';
    const bool file = writes || q.file.has_value();
    std::string next;
    // What cannot run need not be simulated; what runs today is compared with what is recommended.
    if ((e.own.rejection && !file) || (q.from && options.question.plan.empty()))
      next = "sextant plan" + question_arguments(options.question);
    else
      next = fmt::format("sextant simulate{} --plan {}{}", file ? "" : question_arguments(options.question),
                         writes ? options.output
                         : file ? options.question.plan
                                : plan_key(e.chosen),
                         file && q.profile ? " --profile " + q.profile->file : "");
    out << '\n' << command_lines(session.terminal.columns, "next: ", next);
  }
  if (searching.interrupted()) return ExitCode::interrupted;
  return e.own.rejection ? ExitCode::no_feasible_plan : ExitCode::ok;
}

}  // namespace

Verb explain_verb() {
  return {
      .name = "explain",
      .summary = "say why this layout, and why not another",
      .description =
          "Says where a layout's time goes, what the next ones lose and why, what the best layout would be "
          "with another value of one field, and whether the choice would change on a slightly different "
          "machine. With --why KEY: what becomes of that layout, with numbers, and the smallest change that "
          "makes it possible. Without a layout, the best one is looked for first, as 'sextant plan' does.",
      .examples = {{"the plan of a search", "sextant explain plan.json"},
                   {"why not another one",
                    "sextant explain plan.json --why tp8.pp2.z1.mbs1 --why tp1.z0.mbs4 --quick"},
                   {"a layout of your own",
                    "sextant explain tp4.pp2.dp8.z1.mbs1 --model llama-2-13b --cluster 8x8xa100-80gb --json"},
                   {"by the times that its works were measured to take",
                    "sextant explain small.json --profile works.json --quick"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<ExplainOptions>();
        add_text(app,
                 {.flag = "layout",
                  .metavar = "KEY|FILE",
                  .text = "the layout to explain, or a plan file; without it, the best one"},
                 options->layout);
        add_question_options(app, options->question,
                             {.plan = true, .limits = true, .profile = true, .from = true});
        add_jitter_options(app, options->jitter);
        add_list(
            app,
            {.flag = "--why",
             .metavar = "KEY",
             .text =
                 "why not this layout? Fields left out of the key are filled in as by --plan; repeatable"},
            options->why);
        add_number(app,
                   {.flag = "--decision",
                    .metavar = "N",
                    .text = "decision N of the folder of a run with --adapt, in place of a layout: why, and "
                            "what came of it; "
                            "0 = at the start",
                    .min = -1,
                    .max = 1e9},
                   options->decision);
        add_number(app,
                   {.flag = "--top",
                    .metavar = "N",
                    .text = "layouts to compare: the best and the next ones",
                    .unit = "",
                    .min = 1,
                    .max = 1000},
                   options->top);
        add_text(app, {.flag = "-o,--output", .metavar = "FILE", .text = "write the layout as a plan file"},
                 options->output);
        add_flag(app,
                 {.flag = "--quick",
                  .metavar = "",
                  .text = "leave out the searches with other fields and on other machines"},
                 options->quick);
        add_number(app,
                   {.flag = "--budget-s",
                    .metavar = "SECONDS",
                    .text = "stop after this time with what was found; 0 = until all is said",
                    .unit = "seconds",
                    .min = 0,
                    .max = 1e6},
                   options->budget_s);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant
