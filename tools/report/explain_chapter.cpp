#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"
#include "tools/report/search_chapter.hpp"

namespace sextant {
namespace {

// The causes of a comparison that matter, largest first: "exposed tp +1.200 s (TP crosses nodes)".
std::string causes_of(const AnswerView& comparison) {
  struct Term {
    std::string what, cause;
    double seconds = 0;
  };
  std::vector<Term> terms;
  for (const AnswerView& t : comparison.items("terms"))
    terms.push_back(
        {part_text(t.text("category")), t.text_or("cause", ""), t.number("other_s") - t.number("chosen_s")});
  std::ranges::stable_sort(terms, std::greater{}, [](const Term& t) { return std::abs(t.seconds); });
  std::string out;
  constexpr std::size_t kShown = 3;
  for (std::size_t i = 0; i < std::min(kShown, terms.size()); ++i)
    if (std::abs(terms[i].seconds) > 0.002 * comparison.number("chosen_step_time_s"))
      out += fmt::format("{}{} {}{}", out.empty() ? "" : "; ", terms[i].what,
                         (terms[i].seconds > 0 ? "+" : "-") + seconds_text(std::abs(terms[i].seconds)),
                         terms[i].cause.empty() || terms[i].seconds < 0 ? "" : " (" + terms[i].cause + ")");
  return out;
}

struct Compared {
  std::string what;
  AnswerView comparison;
};

ReportSection compared_section(const std::string& title, const std::string& lead, const char* head,
                               const std::vector<Compared>& all) {
  ReportSection out{.title = title, .lead = lead};
  ReportTable table{title, {{head, false}, {"step"}, {"against the chosen"}, {"because", false}}};
  std::vector<ChartBar> bars;
  for (const Compared& c : all) {
    const double slower = c.comparison.number("slower_share");
    table.rows.push_back({c.what, seconds_text(c.comparison.number("other_step_time_s")),
                          signed_share_text(slower), causes_of(c.comparison)});
    bars.push_back({c.what, 100 * slower, signed_share_text(slower), slower >= 0 ? "red" : "green"});
  }
  if (bars.empty()) return out;
  out.chart = bars_chart("How much longer a step takes than under the chosen layout, in percent", "%", bars);
  out.tables.push_back(std::move(table));
  out.table_open = true;
  return out;
}

std::string verdict_text(const AnswerView& asked) {
  const std::string verdict = asked.text("verdict");
  if (verdict == "too_large")
    return fmt::format("does not fit: {} GiB short", gib_text(asked.number("short_by_GiB")));
  if (verdict == "unlawful") return "cannot run";
  if (verdict == "best") return "it is the best";
  if (asked.has("comparison")) return signed_share_text(asked.at("comparison").number("slower_share"));
  return words(verdict);
}

ReportSection asked_section(const AnswerView& answer) {
  ReportSection out{.title = "Why not", .lead = "Layouts that were asked about, against the chosen one."};
  ReportTable table{"Layouts that were asked about",
                    {{"layout", false}, {"verdict", false}, {"because", false}}};
  for (const AnswerView& asked : answer.items("why_not")) {
    const std::string because =
        asked.has("comparison") ? causes_of(asked.at("comparison")) : words(asked.text_or("reason", ""));
    table.rows.push_back({asked.text("key"), verdict_text(asked), because});
  }
  if (!table.rows.empty()) out.tables.push_back(std::move(table));
  out.table_open = true;
  return out;
}

ReportSection sensitivity_section(const AnswerView& answer) {
  ReportSection out{.title = "How firm the choice is", .lead = {}};
  ReportTable table{"If the machine were a little different",
                    {{"machine", false}, {"best layout then", false}, {"loss of staying"}}};
  std::size_t same = 0;
  for (const AnswerView& s : answer.items("sensitivities")) {
    const bool stays = s.flag("same");
    same += stays ? 1 : 0;
    const bool fits = !s.has("chosen_fits") || s.flag("chosen_fits");
    table.rows.push_back({s.text("what"), stays ? "the same" : s.text_or("key", "nothing fits"),
                          fits ? share_text(s.number_or("regret_share", 0)) : "does not fit"});
  }
  if (table.rows.empty()) return out;
  out.lead = fmt::format("On {} of {} slightly different machines the same layout is the best.", same,
                         table.rows.size());
  out.tables.push_back(std::move(table));
  out.table_open = true;
  return out;
}

}  // namespace

ReportChapter explain_chapter(const AnswerView& answer) {
  ReportChapter out;
  if (answer.has("decision")) {
    out.title = "A decision of an adapting run";
    out.sections.push_back(
        {.title = "Not shown",
         .lead = "A report has no charts of a decision yet: give it the folder of the run."});
    return out;
  }
  set_question(answer, out);
  const AnswerView chosen = answer.at("chosen");
  out.key = chosen.text("key");
  if (chosen.has("step_time_s")) {
    ReportSection head{.title = kLayoutTitle, .lead = out.key};
    head.tiles = prediction_tiles(chosen);
    out.sections.push_back(std::move(head));
  }
  const auto add = [&](ReportSection section) {
    if (!section.tables.empty()) out.sections.push_back(std::move(section));
  };
  std::vector<Compared> runners, others;
  for (const AnswerView& r : answer.items("runners_up"))
    runners.push_back({r.text("key"), r.at("comparison")});
  for (const AnswerView& a : answer.items("alternatives"))
    if (a.has("comparison") && a.has("key"))
      others.push_back({fmt::format("{} {}", words(a.text("field")), a.text("other")), a.at("comparison")});
  add(asked_section(answer));
  add(compared_section("Runners-up", "The next layouts of the search, against the chosen one.", "layout",
                       runners));
  add(compared_section("Had one field been another",
                       "The best layout of all in which one field of the choice is another.", "field",
                       others));
  add(sensitivity_section(answer));
  add(outcomes_section(answer));
  return out;
}

}  // namespace sextant
