// `sextant explain`: why this layout, why not another one, and how firm the choice is.
#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/plan_key.hpp"
#include "planner/answers/goodput.hpp"
#include "planner/answers/recommend.hpp"
#include "planner/explain/framework_setting.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/inputs/plan_options.hpp"
#include "tools/output/explained.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/verbs/explain_decision.hpp"
#include "tools/verbs/explain_text.hpp"
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
  bool daring = false;
};

FilledPlan read_key(const std::string& text, const Question& q) {
  FilledPlan filled;
  with_file("--why",
            [&] { filled = fill_plan_key(text, q.stack, q.cluster.gpus(), q.training.parameter, &q.model); });
  return filled;
}

// What `sextant plan` answers to the same question. Not under jitter or by a profile, where it ranks otherwise.
std::optional<Recommended> recommended(const Planning& planning, const Explained& e,
                                       const DecisionBasis& basis, Searching& searching) {
  const Question& q = planning.question();
  if (q.profile || e.by != RankBy::undisturbed || e.found.report.ranked.empty() || searching.stopped())
    return std::nullopt;
  Recommendation answer =
      recommend(planning.job(), q.limits, e.found.report, basis, searching.options(1, "recommendation"));
  std::string why = why_text(answer, basis.rule);
  return Recommended{std::move(answer), std::move(why), {}};
}

// Beside what is recommended the alternatives that `sextant plan` prints; else, and with --daring, the next ones of the search.
std::vector<RunnerUp> runners_up(const Job& job, const ExplainOptions& options, const Explained& e,
                                 std::size_t most) {
  std::vector<RunnerUp> out;
  const auto add = [&](const RankedPlan& r, std::string_view kind) {
    out.push_back(
        {r.plan, std::string(kind), r.prediction.chance_of_overflow, compare(job, e.chosen, r.plan, e.by)});
  };
  if (!options.daring && e.recommended && !e.recommended->comparison)
    for (const OtherLayout& other : e.recommended->answer.alternatives) add(other.plan, name(other.kind));
  if (out.empty())
    for (const RankedPlan& r : e.found.report.ranked)
      if (!(r.plan == e.chosen) && out.size() < most) add(r, "");
  return out;
}

// A layout that is safe and has nothing unusual is compared with such layouts; any other one with all.
Others others_like(const Job& job, const Question& q, const Explained& e, const DecisionBasis& basis) {
  if (!e.recommended || e.prediction.chance_of_overflow >= basis.rule.most_oom_chance ||
      !unusual_features(job, basis.evidence, e.chosen).empty())
    return {.limits = q.limits};
  return {.limits = usual_limits(job, q.limits, basis.evidence),
          .most_oom_chance = basis.rule.most_oom_chance,
          .off_grid = false};
}

Explained explain(const Planning& planning, const ExplainOptions& options, RankBy by, SteadyPlans found,
                  const DecisionBasis& basis, Searching& searching) {
  const Question& q = planning.question();
  const Job searched = planning.job(), job = planning.predicted_job();
  Explained e;
  e.by = by;
  e.found = std::move(found);
  if (q.profile && !e.found.report.ranked.empty()) {
    e.anew = rank_anew(job, by, options.top, kTieShare, e.found.report);
    e.found.proved = false;
  }
  const std::vector<RankedPlan>& ranked = e.found.report.ranked;
  const ParallelPlan& best = ranked.empty() ? *q.plan : ranked.front().plan;
  if (!q.plan && !options.daring) e.recommended = recommended(planning, e, basis, searching);
  e.chosen = q.plan.value_or(e.recommended ? e.recommended->answer.plan.plan : best);
  e.own = why_not(job, e.chosen, best, by);
  // A choice that cannot run is no measure for another one.
  for (const auto& key : options.why) {
    const FilledPlan filled = read_key(key, q);
    e.why.push_back({filled.plan, why_not(job, filled, e.own.rejection ? best : e.chosen, by), filled.notes});
    Asked& asked = e.why.back();
    if (q.profile && asked.answer.comparison) asked.predicted_from = predict(job, filled.plan).predicted_from;
  }
  if (e.own.rejection) return e;
  e.prediction = predict_under(job, e.chosen, by);
  e.time = step_breakdown(job, e.chosen).mean;
  if (!e.recommended) e.recommended = recommended(planning, e, basis, searching);
  if (e.recommended && !(e.recommended->answer.plan.plan == e.chosen))
    e.recommended->comparison = compare(job, e.chosen, e.recommended->answer.plan.plan, by);
  e.runners_up = runners_up(job, options, e, static_cast<std::size_t>(options.top - (q.plan ? 0 : 1)));
  if (options.quick) return e;
  const Others others = others_like(searched, q, e, basis);
  e.usual = others.most_oom_chance < 1;
  if (!searching.stopped())
    e.alternatives = alternatives(searched, others, e.chosen, searching.options(1, "other fields"), by);
  if (q.profile)  // found by the analytic model, and compared by the table
    for (Alternative& a : e.alternatives)
      if (a.exact = false; a.plan) a.comparison = compare(job, e.chosen, a.plan->plan, by);
  if (!searching.stopped())
    e.sensitivities = sensitivities(searched, others, e.chosen, searching.options(1, "other machines"), by);
  e.stopped = searching.stopped();
  return e;
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

// With the limit on memory under which the search for a steady layout looks.
SteadyPlans found_for(const Planning& planning, const ExplainOptions& options, RankBy by,
                      const SearchSpace& space, const DecisionBasis& basis, Searching& searching) {
  const Question& q = planning.question();
  if (by != RankBy::undisturbed && !options.daring)  // the first one is recommended, as by `plan`
    searching.limit_memory(most_needed(q.cluster.device, q.stack, basis.rule.most_oom_chance));
  const int top = q.profile ? std::max(kRankedAnew, 2 * options.top) : std::max(options.top, kJudged);
  const bool recommends = by == RankBy::undisturbed && !options.daring && !q.profile;
  const SearchOptions how = searching.options(top);
  return look_for_best(planning.job(), space, by, recommends ? for_fastest(how) : how);
}

void write_chosen(const Session& session, const Planning& planning, const std::string& output,
                  const Explained& e) {
  PlanFile file = plan_file_of(session, planning.question(), e.chosen, e.prediction, e.time, e.by);
  file.prediction.goodput = goodput(planning.job(), e.chosen, e.prediction.step);
  save_plan_file(output, file);
}

void answer_explained_json(Session& session, const Planning& planning, const Explained& e,
                           const DecisionBasis& basis) {
  const Question& q = planning.question();
  nlohmann::ordered_json answer = explained_json(q, e);
  if (!e.own.rejection) {
    const DecisionRule& rule = basis.rule;
    answer["risk"] = risk_json(e.prediction, rule, e.prediction.chance_of_overflow < rule.most_oom_chance);
    answer["evidence"] = evidence_json(evidence_of(planning.job(), basis.evidence, e.chosen));
  }
  if (q.profile) answer["profile"] = profile_json(*q.profile, planning.costs());
  if (e.anew) {
    answer["best_bound_s"] = nullptr;
    answer["ranked_anew"] = ranked_anew_json(*e.anew);
  }
  print_json(session, "explain", answer);
}

// What was asked, and what the chosen layout needs to be run and has been seen of it.
void print_head(Session& session, const Planning& planning, const Explained& e, const EvidenceTable& seen) {
  const Question& q = planning.question();
  const auto say = [&](const std::string& text) {
    print_wrapped(session.terminal.out, session.terminal, text);
  };
  say(question_text(q));
  print_notes(session, q);
  if (!e.own.rejection) {
    if (const std::string text = framework_setting(e.chosen, q.training, q.stack); !text.empty())
      say("note: " + text);
    say(evidence_text(evidence_of(planning.job(), seen, e.chosen), q.stack.name,
                      q.cluster.device.generation));
    if (const std::string text = layout_setting(e.chosen, q.model, q.stack); !text.empty())
      say("note: " + text);
  }
  session.terminal.out << '\n';
}

// `written`: the layout's file, if it was written.
std::string next_command(const Session& session, const Question& q, const QuestionOptions& asked,
                         const Explained& e, const std::string& written) {
  const bool file = !written.empty() || q.file.has_value();
  // What cannot run need not be simulated; what runs today is compared with what is recommended.
  if ((e.own.rejection && !file) || (q.from && asked.plan.empty()))
    return "sextant plan" + question_arguments(session, asked);
  return fmt::format("sextant simulate{} --plan {}{}", file ? "" : question_arguments(session, asked),
                     !written.empty() ? written
                     : file           ? asked.plan
                                      : plan_key(e.chosen),
                     file && q.profile ? " --profile " + q.profile->file : "");
}

void answer_explained_text(Session& session, const Planning& planning, const QuestionOptions& asked,
                           const Explained& e, const DecisionBasis& basis, const std::string& written) {
  const Question& q = planning.question();
  auto& out = session.terminal.out;
  print_head(session, planning, e, basis.evidence);
  if (e.own.rejection)
    print_why(session, q, {e.chosen, e.own, {}}, e.by);
  else
    print_choice(session, planning, e);
  for (const Asked& why : e.why) print_why(session, q, why, e.by);
  print_alternatives(session, e);
  print_sensitivities(session, e);
  if (e.stopped) out << "\nstopped early: not every question was asked\n";
  if (!written.empty()) out << "\nwritten: " << written << '\n';
  out << '\n'
      << command_lines(session.terminal.columns, "next: ", next_command(session, q, asked, e, written));
}

ExitCode run(Session& session, ExplainOptions options) {
  if (options.decision >= 0) return explain_decision(session, options.layout, options.decision);
  take_layout(options.layout, options.question);
  settle(options.jitter, options.question);
  options.question.samples_jitter = true;  // its note is rank_by's
  Question asked = read_question(session, options.question);
  check_output("--output", options.output, files_read(options.question));
  const RankBy by = rank_by(options.jitter, asked);
  const Planning planning(std::move(asked), session.presets());
  const Question& q = planning.question();
  for (const auto& key : options.why) read_key(key, q);  // a slip shows before the search
  Searching searching(session.terminal, options.budget_s);
  const DecisionBasis basis{load_decision_rule(session.presets()), load_evidence(session.presets())};
  const int world = q.plan && q.plan->world() <= q.cluster.gpus() ? q.plan->world() : q.cluster.gpus();
  const SearchSpace space = default_space(q.model, q.training, q.cluster.device, world, q.limits);
  SteadyPlans found = found_for(planning, options, by, space, basis, searching);
  const SearchReport& report = found.report;
  if (report.ranked.empty() && !q.plan && !session.common.json)
    return print_nothing(session, "explain", planning, space, report, searching, options.question);
  if (report.ranked.empty() && !q.plan) {
    print_json(session, "explain", nothing_json(q, report));
    return searching.interrupted() ? ExitCode::interrupted : ExitCode::no_feasible_plan;
  }
  Explained e = explain(planning, options, by, std::move(found), basis, searching);
  if (!e.own.rejection)
    e.calibrated = use_covariance(session, options.question, q, e.chosen, e.prediction).has_value();
  searching.finish();
  const std::string written = e.own.rejection ? "" : options.output;  // what cannot run is no plan
  if (!written.empty()) write_chosen(session, planning, written, e);
  if (session.common.json)
    answer_explained_json(session, planning, e, basis);
  else
    answer_explained_text(session, planning, options.question, e, basis, written);
  if (searching.interrupted()) return ExitCode::interrupted;
  return e.own.rejection ? ExitCode::no_feasible_plan : ExitCode::ok;
}

Run define_explain(CLI::App& app) {
  auto options = std::make_shared<ExplainOptions>();
  add_text(app,
           {.flag = "layout",
            .metavar = "KEY|FILE",
            .text = "the layout to explain, or a plan file; without it, what 'sextant plan' recommends"},
           options->layout);
  add_question_options(app, options->question, {.plan = true, .limits = true, .profile = true, .from = true});
  add_jitter_options(app, options->jitter);
  add_list(app,
           {.flag = "--why",
            .metavar = "KEY",
            .text = "why not this layout? Fields left out of the key are filled in as by --plan; repeatable"},
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
  add_flag(app,
           {.flag = "--daring",
            .metavar = "",
            .text = "without a layout: the fastest on paper, whatever its risk and its features"},
           options->daring);
  add_number(app,
             {.flag = "--budget-s",
              .metavar = "SECONDS",
              .text = "stop after this time with what was found; 0 = until all is explained",
              .unit = "seconds",
              .min = 0,
              .max = 1e6},
             options->budget_s);
  return [options](Session& session) { return run(session, *options); };
}

}  // namespace

Verb explain_verb() {
  return {
      .name = "explain",
      .summary = "explain why this layout, and why not another",
      .description =
          "Reports where a layout's time goes, what the next ones lose and why, what the best layout would "
          "be "
          "with another value of one field, and whether the choice would change on a slightly different "
          "machine. With --why KEY: what becomes of that layout, with numbers, and the smallest change that "
          "makes it possible. Without a layout, what 'sextant plan' recommends is looked for first.",
      .examples = {{"the plan of a search", "sextant explain plan.json"},
                   {"why not another one",
                    "sextant explain plan.json --why tp8.pp2.z1.mbs1 --why tp1.z0.mbs4 --quick"},
                   {"a layout of your own",
                    "sextant explain tp4.pp2.dp8.z1.mbs1 --model llama-2-13b --cluster 8x8xa100-80gb --json"},
                   {"by the measured times of its operations",
                    "sextant explain small.json --profile profile.json --quick"}},
      .define = define_explain};
}

}  // namespace sextant
