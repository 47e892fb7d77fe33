#include "tools/output/validation_text.hpp"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>

#include "tools/inputs/planning.hpp"
#include "tools/terminal/table.hpp"

namespace sextant {

namespace {

std::string shown_if(bool known, double value, const char* format) {
  return known ? fmt::format(fmt::runtime(format), value) : "";
}

// Means over sources of the errors, over groups of the ranking, and sums of what is counted.
SourceScore overall(const std::vector<SourceScore>& scores, int least_rows = 0) {
  SourceScore all;
  all.source = least_rows > 0 ? fmt::format("of {} rows or more", least_rows) : "all sources";
  double timed = 0, peaks = 0;
  for (const SourceScore& s : scores) {
    if (s.rows < least_rows) continue;
    all.rows += s.rows;
    all.unpredicted += s.unpredicted;
    all.covered += s.covered;
    all.oom_true += s.oom_true;
    all.oom_false += s.oom_false;
    all.oom_missed += s.oom_missed;
    all.oom_unknown += s.oom_unknown;
    all.memory_rows += s.memory_rows;
    all.memory_covered += s.memory_covered;
    all.groups += s.groups;
    all.kendall_tau += s.groups * s.kendall_tau;
    all.regret_1 += s.groups * s.regret_1;
    all.regret_3 += s.groups * s.regret_3;
    if (s.rows > s.unpredicted) {
      ++timed;
      all.mape += s.mape;
      all.median += s.median;
      all.bias += s.bias;
      all.p90 += s.p90;
    }
    if (s.memory_rows > 0) {
      ++peaks;
      all.memory_mape += s.memory_mape;
    }
  }
  for (double* x : {&all.mape, &all.median, &all.bias, &all.p90}) *x /= std::max(1.0, timed);
  for (double* x : {&all.kendall_tau, &all.regret_1, &all.regret_3}) *x /= std::max(1, all.groups);
  all.memory_mape /= std::max(1.0, peaks);
  return all;
}

void add_times(Table& times, const SourceScore& s) {
  if (s.rows == 0) return;
  const int timed = s.rows - s.unpredicted;
  times.add_row({s.source, fmt::format("{}", s.rows), shown_if(timed > 0, s.mape, "{:.1f}"),
                 shown_if(timed > 0, s.median, "{:.1f}"), shown_if(timed > 0, s.bias, "{:+.1f}"),
                 shown_if(timed > 0, s.p90, "{:.1f}"),
                 shown_if(timed > 0, 100.0 * s.covered / std::max(1, timed), "{:.0f}")});
}

// Ranking and memory; nothing of a source that has neither.
void add_others(Table& others, const SourceScore& s) {
  const int oom = s.oom_true + s.oom_missed;
  if (s.groups + oom + s.oom_false + s.memory_rows == 0) return;
  others.add_row(
      {s.source, shown_if(s.groups > 0, s.kendall_tau, "{:.2f}"),
       shown_if(s.groups > 0, s.regret_1, "{:.1f}"), shown_if(s.groups > 0, s.regret_3, "{:.1f}"),
       oom > 0 ? fmt::format("{} of {}", s.oom_true, oom) : "", fmt::format("{}", s.oom_false),
       shown_if(s.memory_rows > 0, s.memory_mape, "{:.1f}"),
       shown_if(s.memory_rows > 0, 100.0 * s.memory_covered / std::max(1, s.memory_rows), "{:.0f}")});
}

// `unknown`: runs said to run out of memory that do not state what they recompute.
std::string legend_of_others(int unknown, bool several) {
  std::string text =
      "tau: Kendall's, inside groups of four layouts and more; regret: what the layout predicted "
      "best loses against the "
      "best measured, and the best measured of three; OOM found: of the runs that ran out of "
      "memory; false: predicted to, "
      "and did not; memory: error of the peak, and peaks inside their interval";
  if (unknown > 0)
    text += fmt::format("; not counted as false: {} that do not state what they recompute, and may have",
                        unknown);
  if (several)
    text += "; all sources: errors are means over sources, tau and regret over groups, counts are sums";
  return text;
}

}  // namespace

// Two tables, so that both fit a terminal of 80 columns.
void print_scores(Session& session, const std::vector<SourceScore>& scores) {
  Table times({{"source", Align::left},
               {"rows", Align::right},
               {"error %", Align::right},
               {"median %", Align::right},
               {"bias %", Align::right},
               {"p90 %", Align::right},
               {"in interval %", Align::right}});
  Table others({{"source", Align::left},
                {"tau", Align::right},
                {"regret %", Align::right},
                {"best of 3 %", Align::right},
                {"OOM found", Align::right},
                {"false", Align::right},
                {"memory %", Align::right},
                {"inside %", Align::right}});
  const auto add = [&](const SourceScore& s) {
    add_times(times, s);
    add_others(others, s);
  };
  for (const auto& s : scores) add(s);
  if (scores.size() > 1) {
    add(overall(scores));
    for (Table* table : {&times, &others})
      if (!table->empty()) table->emphasize_last_row();
    // A source of one row weighs as much as one of hundreds in the mean above.
    constexpr int kMany = 20;
    const auto many = [](const SourceScore& s) { return s.rows >= kMany; };
    if (std::ranges::any_of(scores, many) && !std::ranges::all_of(scores, many))
      add_times(times, overall(scores, kMany));
  }
  for (const Table* table : {&times, &others})
    if (!table->empty()) session.terminal.out << '\n' << table->render(session.terminal, session.common.wide);
  if (!others.empty())
    print_wrapped(session.terminal.out, session.terminal,
                  legend_of_others(overall(scores).oom_unknown, scores.size() > 1));
}

std::string inconsistent_text(std::span<const RunRow> rows, std::span<const InconsistentTime> times) {
  if (times.empty()) return {};
  std::vector<std::string> each;
  for (const InconsistentTime& t : times) {
    std::vector<std::string> beside;
    for (const std::size_t i : t.neighbours) beside.push_back(fmt::format("{:.3g}", rows[i].step_time->v));
    each.push_back(fmt::format("{}, {:.3g} s beside {} s", rows[t.row].run_id, rows[t.row].step_time->v,
                               fmt::join(beside, " and ")));
  }
  return fmt::format(
      "{} inconsistent with runs that differ in one doubling of the micro-batch or the ZeRO stage alone: "
      "{}; without {} ",
      times.size() == 1 ? "one measured time is" : fmt::format("{} measured times are", times.size()),
      fmt::join(each, "; "), times.size() == 1 ? "it" : "them");
}

void print_held_out(Session& session, const HeldOut& h, std::span<const RunRow> rows) {
  print_wrapped(session.terminal.out, session.terminal,
                "Every source is predicted by constants fitted to the other sources, from cold priors.");
  print_scores(session, h.sources);
  const auto say = [&](const std::string& before, const RankingScore& choice) {
    if (choice.groups > 0)
      print_wrapped(
          session.terminal.out, session.terminal,
          fmt::format("{}{} groups: regret {:.2f} %, tau {:.2f}; largest regret {:.1f} %, of {}", before,
                      choice.groups, choice.regret, choice.tau, choice.worst_regret, choice.worst));
  };
  say("", ranking_of(h.sources));
  const auto inconsistent = inconsistent_times(rows);
  if (!inconsistent.empty())
    say(inconsistent_text(rows, inconsistent),
        ranking_of(score_runs(without(rows, inconsistent), h.predictions)));
  if (h.extrapolations.empty()) return;
  Table table({{"held out of the fit", Align::left},
               {"fitted", Align::right},
               {"scored", Align::right},
               {"sources", Align::right, 1},
               {"error %", Align::right},
               {"bias %", Align::right},
               {"in interval %", Align::right}});
  for (const Extrapolation& e : h.extrapolations)
    table.add_row({e.held_out, fmt::format("{}", e.fitted), fmt::format("{}", e.rows),
                   fmt::format("{}", e.sources), fmt::format("{:.1f}", e.mape),
                   fmt::format("{:+.1f}", e.bias), fmt::format("{:.0f}", 100 * e.coverage)});
  session.terminal.out << '\n' << table.render(session.terminal, session.common.wide);
}

void print_unmeasured(Session& session, const std::vector<RunRow>& rows,
                      const std::vector<RunPrediction>& predictions) {
  constexpr std::size_t kShown = 20;
  Table table({{"run", Align::left},
               {"step s", Align::right},
               {"from", Align::right, 1},
               {"to", Align::right, 1},
               {"peak GiB", Align::right},
               {"fits", Align::left},
               {"note", Align::left}});
  std::size_t unmeasured = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].step_time || rows[i].out_of_memory || rows[i].peak_memory_GiB || ++unmeasured > kShown)
      continue;
    const auto& p = predictions[i];
    const auto text = [](const std::optional<double>& x) { return x ? fmt::format("{:.4g}", *x) : ""; };
    table.add_row({p.run_id, text(p.step_s), text(p.step_lower_s), text(p.step_upper_s), text(p.memory_GiB),
                   p.fits ? (*p.fits ? "yes" : "no") : "", p.note});
  }
  if (unmeasured == 0) return;
  session.terminal.out << fmt::format("\n{} without measured time or memory:\n", unmeasured)
                       << table.render(session.terminal, session.common.wide);
  if (unmeasured > kShown)
    session.terminal.out << fmt::format("... and {} more: --predictions OUT.csv has them all\n",
                                        unmeasured - kShown);
}

void tell_unpredicted(Session& session, const std::vector<RunRow>& rows,
                      const std::vector<RunPrediction>& predictions) {
  constexpr int kShown = 5;
  int unpredicted = 0;
  const auto say = [&](const std::string& text) {
    session.terminal.err << wrapped_message(session.terminal, text + '\n');
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (predictions[i].step_s || ++unpredicted > kShown) continue;
    const RunRow& row = rows[i];
    const std::string& note = predictions[i].note;
    if (row.unreadable.empty() && !note.starts_with(fmt::format("{}:{}: ", row.file, row.line)))
      say(fmt::format("not predicted: {}:{}: {}: {}", row.file, row.line, row.run_id, note));
    else
      say(fmt::format("not predicted: {}", note));
  }
  if (unpredicted > 0)
    say(fmt::format(
        "warning: {} of {} row{} not predicted; --predictions OUT.csv gives the reason of each in its note",
        unpredicted, rows.size(), rows.size() == 1 ? " is" : "s are"));
}

}  // namespace sextant
