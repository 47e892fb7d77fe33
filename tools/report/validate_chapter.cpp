#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"

namespace sextant {
namespace {

std::string percent_of(double percent) { return fmt::format("{:.1f} %", percent); }

ReportSection sources_section(const AnswerView& answer) {
  ReportSection out{.title = "Error of predicted step times", .lead = {}};
  ReportTable table{
      "By source of measured runs",
      {{"source", false}, {"runs"}, {"mean error"}, {"median"}, {"bias"}, {"in the interval"}, {"memory"}}};
  std::vector<ChartBar> bars;
  double sum = 0, runs = 0;
  for (const AnswerView& s : answer.items("sources")) {
    const double error = s.number("mean_absolute_error_percent"), rows = s.number("rows");
    sum += error;
    runs += rows;
    bars.push_back(
        {words(s.text("source")), error, fmt::format("{} · {:.0f} runs", percent_of(error), rows), "blue"});
    const bool memory = s.number_or("memory_rows", 0) > 0;
    table.rows.push_back({words(s.text("source")), fmt::format("{:.0f}", rows), percent_of(error),
                          percent_of(s.number("median_absolute_error_percent")),
                          fmt::format("{:+.1f} %", s.number("bias_percent")),
                          rows > 0 ? share_text(s.number("inside_interval") / rows) : "",
                          memory ? percent_of(s.number("memory_mean_absolute_error_percent")) : ""});
  }
  if (bars.empty()) return out;
  std::ranges::stable_sort(bars, {}, &ChartBar::value);
  out.lead = fmt::format("{} measured runs of {} source{}; mean error over sources {}.", rate_text(runs),
                         bars.size(), bars.size() == 1 ? "" : "s",
                         percent_of(sum / static_cast<double>(bars.size())));
  out.chart = bars_chart("Mean absolute error of predicted step times by source, in percent", "%", bars);
  out.tables.push_back(std::move(table));
  return out;
}

// Runs of which the answer holds both times.
ReportSection runs_section(const AnswerView& answer, const char* measured_key, const char* predicted_key) {
  ReportSection out{.title = "Every run, predicted and measured", .lead = {}};
  std::map<std::string, ChartLine> of;
  struct Off {
    double factor = 1;  // how far off, above 1
    std::vector<std::string> cells;
  };
  std::vector<Off> farthest;
  std::size_t n = 0, near = 0;
  for (const AnswerView& run : answer.items("runs")) {
    if (!run.has(measured_key) || !run.has(predicted_key)) continue;
    const double m = run.number(measured_key), p = run.number(predicted_key);
    if (!(m > 0 && p > 0)) continue;
    ChartLine& line = of[words(run.text_or("source", "run"))];
    line.line = false;
    line.points.push_back({m, p, run.text_or("run_id", ""), {}});
    farthest.push_back(
        {std::max(p / m, m / p),
         {run.text_or("run_id", ""), seconds_text(m), seconds_text(p), signed_share_text(p / m - 1)}});
    ++n;
    near += p < 1.1 * m && m < 1.1 * p ? 1 : 0;
  }
  if (n == 0) return out;
  ChartLines chart{{.title = "measured step, s", .logarithmic = true},
                   {.title = "predicted step, s", .logarithmic = true},
                   {}};
  chart.diagonal = true;
  constexpr std::size_t kToldApart = 8;
  for (auto& [name, line] : of) {
    line.name = of.size() <= kToldApart ? name : "";
    line.tone = of.size() <= kToldApart ? tone_of(chart.lines.size()) : "blue";
    chart.lines.push_back(std::move(line));
  }
  out.lead = fmt::format("{} of {} runs are predicted within 10 %. On the line both times are the same.",
                         rate_text(static_cast<double>(near)), rate_text(static_cast<double>(n)));
  out.chart = lines_chart("Predicted over measured step time of every run", chart);
  constexpr std::size_t kWorst = 10;
  std::ranges::stable_sort(farthest, std::greater{}, &Off::factor);
  ReportTable table{"The runs that are farthest off",
                    {{"run", false}, {"measured"}, {"predicted"}, {"error"}}};
  for (std::size_t i = 0; i < std::min(kWorst, farthest.size()); ++i)
    table.rows.push_back(std::move(farthest[i].cells));
  out.tables.push_back(std::move(table));
  return out;
}

ReportSection ranking_section(const AnswerView& answer) {
  ReportSection out{.title = "What the recommendation would have cost", .lead = {}};
  if (!answer.has("recommendation")) return out;
  const AnswerView r = answer.at("recommendation");
  out.lead = fmt::format(
      "In {} groups of layouts that somebody measured, the recommended one is {} slower than the best "
      "measured in the mean.",
      r.count("groups"), percent_of(r.number("regret_mean_percent")));
  ReportTable table{"By group of measured layouts",
                    {{"group", false}, {"layouts"}, {"slower than the best"}, {"best of three"}}};
  for (const AnswerView& g : r.items("by_group")) {
    std::string group = g.text("group");
    std::ranges::replace(group, '|', ' ');
    table.rows.push_back({group, fmt::format("{}", g.count("layouts")),
                          percent_of(g.number("regret_percent")),
                          percent_of(g.number("regret_of_best_of_3_percent"))});
  }
  if (!table.rows.empty()) out.tables.push_back(std::move(table));
  return out;
}

ReportSection collectives_section(const AnswerView& answer) {
  ReportSection out{.title = "Error of predicted collectives",
                    .lead = "Mean absolute error by table of measured collectives."};
  ReportTable table{"By table", {{"table", false}, {"large"}, {"small"}}};
  std::vector<ChartBar> bars;
  for (const AnswerView& c : answer.items("collectives")) {
    const std::string what = fmt::format("{} {}", words(c.text_or("source", "all")), c.text_or("gpu", ""));
    const double large = c.at("large").number("mean_absolute_error_percent"),
                 small = c.at("small").number("mean_absolute_error_percent");
    bars.push_back({what, large, percent_of(large), "blue", small, percent_of(small)});
    table.rows.push_back({what, percent_of(large), percent_of(small)});
  }
  if (bars.empty()) return out;
  out.chart = bars_chart("Mean absolute error of predicted collectives, in percent", "%", bars,
                         {"64 MiB and more", "smaller"});
  out.tables.push_back(std::move(table));
  return out;
}

void add_if_any(ReportChapter& chapter, ReportSection section) {
  if (!section.lead.empty() && (!section.tables.empty() || !section.chart.is_null()))
    chapter.sections.push_back(std::move(section));
}

}  // namespace

ReportChapter validate_chapter(const AnswerView& answer) {
  ReportChapter out{.title = "Predictions against measured runs",
                    .subtitle = "sextant validate",
                    .key = {},
                    .question = {},
                    .source = {}};
  add_if_any(out, sources_section(answer));
  add_if_any(out, runs_section(answer, "measured_step_time_s", "step_time_s"));
  add_if_any(out, ranking_section(answer));
  add_if_any(out, collectives_section(answer));
  if (out.sections.empty())
    out.sections.push_back(
        {.title = "Not shown", .lead = "This answer has neither sources nor collectives to chart."});
  return out;
}

ReportChapter calibrate_chapter(const AnswerView& answer) {
  ReportChapter out{
      .title = "Calibration", .subtitle = "sextant calibrate", .key = {}, .question = {}, .source = {}};
  ReportSection all{.title = "Before and after", .lead = {}};
  ReportTable table{"Step times of the runs that were fitted",
                    {{"run", false}, {"layout", false}, {"measured"}, {"before"}, {"after"}}};
  std::vector<ChartBar> bars;
  double before = 0, after = 0;
  for (const AnswerView& run : answer.items("runs")) {
    const double m = run.number("measured_s"), b = run.number("before_s"), a = run.number("after_s");
    table.rows.push_back(
        {run.text("run_id"), run.text_or("plan", ""), seconds_text(m), seconds_text(b), seconds_text(a)});
    before += std::abs(b / m - 1);
    after += std::abs(a / m - 1);
    bars.push_back({run.text("run_id"), 100 * (b / m - 1), signed_share_text(b / m - 1), "orange",
                    100 * (a / m - 1), signed_share_text(a / m - 1)});
  }
  if (bars.empty()) {
    all.lead = "No run was fitted.";
  } else {
    const auto n = static_cast<double>(bars.size());
    all.lead = fmt::format("{} run{}: the mean error falls from {} to {}.", bars.size(),
                           bars.size() == 1 ? "" : "s", share_text(before / n), share_text(after / n));
    all.chart = bars_chart("Error of predicted step times before and after, in percent of the measured", "%",
                           bars, {"before", "after"});
    all.tables.push_back(std::move(table));
  }
  out.sections.push_back(std::move(all));
  return out;
}

}  // namespace sextant
