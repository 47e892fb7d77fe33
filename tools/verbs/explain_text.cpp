#include "tools/verbs/explain_text.hpp"

#include <algorithm>
#include <cmath>
#include <ostream>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/plan/plan_key.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/output/time_rows.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

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

// How the best stands beside the chosen one, on the base that every other line has: the chosen one's step.
std::string best_beside(const WhyNot& own) {
  if (!own.comparison) return "this one is " + words(own.lines.front());
  const double share = own.comparison->best_step / own.comparison->other_step - 1;
  return fmt::format("{}; this one has {}", change_text(share), cause(*own.comparison));
}

constexpr const char* kAmongUsual = ", of safe layouts without unusual features";

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
    best += t.best;
    other += t.other;
    table.add_row({words(t.what), fmt::format("{:.2f}", gib(t.best)), fmt::format("{:.2f}", gib(t.other))});
  }
  table.add_row({"peak", fmt::format("{:.2f}", gib(best)), fmt::format("{:.2f}", gib(other))});
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide);
}

void say_below(Session& session, const std::string& text) {
  print_wrapped(session.terminal.out, session.terminal, text, 2);
}

// What the chosen one takes of time and memory, and what that is predicted by.
void print_step_of_choice(Session& session, const Question& q, const Explained& e) {
  const Prediction& p = e.prediction;
  const auto say = [&](const std::string& text) { say_below(session, text); };
  say(fmt::format("{:.3f} s a step, {:.1f} of {:.1f} GiB (most of it {} of stage {})", p.step.v,
                  gib(p.memory.peak), gib(p.memory_available), p.memory.largest, p.memory.stage));
  if (const auto text = host_memory_text(p.memory, q.cluster.node); !text.empty()) say(text);
  if (p.predicted_from) say(predicted_from_text(*q.profile, *p.predicted_from));
  if (p.jitter) say("this step is " + jitter_text(p));
  if (e.calibrated)
    say(fmt::format("{:.3f} to {:.3f} s in nine of ten cases, as the calibration leaves it", p.step_lower.v,
                    p.step_upper.v));
  std::vector<std::string> parts;
  for (const TimeRow& row : time_rows(e.time, p.step, p.step - ranked_step(p, RankBy::undisturbed)))
    if (row.share >= 0.001) parts.push_back(fmt::format("{} {:.1f} %", row.what, 100 * row.share));
  say(fmt::format("its time: {}", fmt::join(parts, ", ")));
}

// How it stands beside what `sextant plan` recommends.
void print_recommended(Session& session, const Recommended& r) {
  if (!r.comparison) return say_below(session, "it is what 'sextant plan' recommends: " + r.why);
  say_below(session, fmt::format("'sextant plan' recommends {}: {}; {}", plan_key(r.answer.plan.plan),
                                 change_text(r.comparison->slower), cause(*r.comparison)));
}

// How it stands among all that were sampled, by --rank-by.
void print_rank_under_jitter(Session& session, const Explained& e, const std::string& proof) {
  const std::string space = fmt::format("{} layouts that were sampled under jitter", e.found.sampled);
  const std::string_view fastest = e.by == RankBy::p90 ? "best by p90" : "best by mean";
  if (e.own.verdict == Verdict::best)
    say_below(session, fmt::format("the {} of {} ({})", fastest, space, proof));
  else
    say_below(session,
              fmt::format("of {} ({}) {} is the {}: {}", space, proof,
                          plan_key(e.found.report.ranked.front().plan), fastest, best_beside(e.own)));
}

// How it stands among all that were searched.
void print_rank(Session& session, const Explained& e, const std::string& proof) {
  const SearchReport& report = e.found.report;
  const RankedPlan* best = report.ranked.empty() ? nullptr : &report.ranked.front();
  const std::string space = fmt::format("{} layouts", count_text(report.space));
  const auto say = [&](const std::string& text) { say_below(session, text); };
  if (e.own.verdict == Verdict::best && best && best->off_grid())
    say(fmt::format("faster than the fastest of {} ({}): {} for as long as that helped", space, proof,
                    !best->before_refinement ? "layers were moved between stages"
                    : !best->before_moves
                        ? "it was refined off the search grid"
                        : "it was refined off the search grid, and layers were moved between stages"));
  else if (e.own.verdict == Verdict::best)
    say(fmt::format("the fastest of {} ({})", space, proof));
  else
    say(fmt::format("of {} ({}) the fastest is {}: {}", space, proof, plan_key(best->plan),
                    best_beside(e.own)));
  if (e.own.verdict != Verdict::best && !e.chosen.chunks.empty() && e.prediction.step < best->prediction.step)
    say("its stages are cut by hand: the search tries equal ones, those balanced by time, and from the "
        "best of "
        "them on, layers moved between stages");
}

void print_runners_up(Session& session, const std::vector<RunnerUp>& runners_up) {
  if (runners_up.empty()) return;
  session.terminal.out << (runners_up.front().kind.empty() ? "\nnext best\n" : "\nalternatives\n");
  for (const RunnerUp& r : runners_up) {
    std::string text = r.kind.empty() ? "" : r.kind + ": ";
    text +=
        fmt::format("{}: {}; {}", plan_key(r.plan), change_text(r.comparison.slower), cause(r.comparison));
    if (r.oom_chance >= kSurelyFits) text += "; OOM risk " + oom_risk_text(r.oom_chance);
    say_below(session, text);
  }
}

}  // namespace

void print_why(Session& session, const Question& q, const Asked& asked, RankBy by) {
  auto& out = session.terminal.out;
  out << '\n';
  print_wrapped(out, session.terminal,
                paint(session.terminal.color, Style::bold, "why not " + plan_key(asked.plan)));
  for (const auto& line : asked.answer.lines) print_wrapped(out, session.terminal, words(line), 2);
  if (asked.predicted_from)
    print_wrapped(out, session.terminal,
                  "its step is " + predicted_from_text(*q.profile, *asked.predicted_from), 2);
  for (const auto& note : asked.notes) print_wrapped(out, session.terminal, "note: " + note, 2);
  if (asked.answer.comparison && asked.answer.verdict != Verdict::best) {
    out << '\n';
    print_comparison(session, *asked.answer.comparison, by);
  }
  if (!asked.answer.memory.empty()) {
    out << '\n';
    print_memory(session, asked.answer);
  }
}

void print_choice(Session& session, const Planning& planning, const Explained& e) {
  print_wrapped(session.terminal.out, session.terminal,
                paint(session.terminal.color, Style::bold, "why " + plan_key(e.chosen)));
  print_step_of_choice(session, planning.question(), e);
  if (e.recommended) print_recommended(session, *e.recommended);
  const SearchReport& report = e.found.report;
  const std::string proof = !report.exact    ? "not proved: " + report.stopped
                            : e.found.proved ? "proved, on the search grid"
                                             : "no proof: others were not sampled";
  if (e.prediction.jitter)
    print_rank_under_jitter(session, e, proof);
  else
    print_rank(session, e, proof);
  if (e.anew) say_below(session, ranked_anew_text(planning, *e.anew));
  print_runners_up(session, e.runners_up);
}

void print_alternatives(Session& session, const Explained& e) {
  if (e.alternatives.empty()) return;
  auto& out = session.terminal.out;
  const bool sampled = e.by != RankBy::undisturbed;
  out << fmt::format("\nbest with another value of one field{}\n", sampled   ? ", of those sampled"
                                                                   : e.usual ? kAmongUsual
                                                                             : "");
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
  out << fmt::format("\non a slightly different machine{}\n", e.anew    ? ", by the analytic model alone"
                                                              : e.usual ? kAmongUsual
                                                                        : "");
  for (const Sensitivity& s : e.sensitivities) {
    std::string text = fmt::format("{}: ", s.what);
    if (s.same || !s.plan)
      text += s.text;
    else if (!s.may_stay())
      text += fmt::format(
          "{}; {} would be best",
          s.oom_chance > 0 ? "its OOM risk is " + oom_risk_text(s.oom_chance) : "it no longer fits",
          plan_key(*s.plan));
    else if (s.as_today)
      text += fmt::format("no new choice; {} is {:.1f} % faster, as it is today", plan_key(*s.plan),
                          100 * s.gain());
    else if (s.regret < kTieShare)
      text += fmt::format("a tie with {} ({:.1f} %)", plan_key(*s.plan), 100 * s.gain());
    else
      text += fmt::format("{} would be best, {}", plan_key(*s.plan), s.text);
    // Of the layout that one would have there.
    const double step = s.as_today ? (1 + s.slower) * (1 + s.regret) - 1 : s.slower;
    if (s.plan) text += fmt::format("; step {:+.1f} % from today", 100 * step);
    print_wrapped(out, session.terminal,
                  text + (s.exact || e.by != RankBy::undisturbed ? "" : " (not proved)"), 2);
  }
}

}  // namespace sextant
