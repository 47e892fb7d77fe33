#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"

namespace sextant {
namespace {

std::string ratio_of(double predicted, double measured) {
  return predicted < 1e-9 ? "" : fmt::format("{:.2f}", measured / predicted);
}

ReportSection parts_section(const AnswerView& run) {
  ReportSection out{.title = "Predicted against measured", .lead = {}};
  const double predicted = run.number("predicted_step_s"), measured = run.number("measured_step_s");
  ReportTable table{"Seconds of the step by part, mean over stages",
                    {{"part", false}, {"predicted"}, {"measured"}, {"ratio"}}};
  std::vector<ChartBar> bars;
  const auto measured_parts = run.numbers("measured_breakdown_s");
  double largest = 0;
  std::string cause;
  for (const auto& [key, p] : run.numbers("predicted_breakdown_s")) {
    const auto found = std::ranges::find(measured_parts, key, &std::pair<std::string, double>::first);
    const double m = found == measured_parts.end() ? 0 : found->second;
    if (std::max(p, m) < 1e-3 * measured) continue;
    bars.push_back({part_text(key), p, seconds_text(p), "blue", m, seconds_text(m)});
    table.rows.push_back({part_text(key), seconds_text(p), seconds_text(m), ratio_of(p, m)});
    if (std::abs(m - p) > largest) {
      largest = std::abs(m - p);
      cause = part_text(key);
    }
  }
  std::ranges::stable_sort(bars, std::greater{},
                           [](const ChartBar& b) { return std::max(b.value, *b.other); });
  table.rows.push_back(
      {"step", seconds_text(predicted), seconds_text(measured), ratio_of(predicted, measured)});
  table.emphasized = static_cast<int>(table.rows.size()) - 1;
  out.lead = fmt::format("The step was predicted to take {} and took {} ({}).", seconds_text(predicted),
                         seconds_text(measured), signed_share_text(measured / predicted - 1));
  if (!cause.empty()) out.lead += fmt::format(" Most of the difference is {}.", cause);
  out.chart =
      bars_chart("Seconds of the step by part, predicted and measured", "s", bars, {"predicted", "measured"});
  out.tables.push_back(std::move(table));
  return out;
}

ReportSection operations_section(const AnswerView& run) {
  ReportSection out{.title = "Predicted against measured, by operation", .lead = {}};
  ReportTable table{
      "Busy seconds of a step, mean over stages",
      {{"operations", false}, {"count"}, {"predicted"}, {"measured"}, {"ratio"}, {"lane", false}}};
  std::vector<ChartBar> bars;
  constexpr std::size_t kCharted = 12;
  for (const AnswerView& op : run.items("operations")) {
    const double p = op.number("predicted_s"), m = op.number("measured_s");
    const std::string what = words(op.text("operations"));
    if (bars.size() < kCharted) bars.push_back({what, p, seconds_text(p), "blue", m, seconds_text(m)});
    table.rows.push_back({what, fmt::format("{}", op.count("count")), seconds_text(p), seconds_text(m),
                          ratio_of(p, m), op.flag("compute_lane") ? "compute" : "overlapped"});
  }
  if (bars.empty()) return out;
  out.lead = table.rows.size() > kCharted ? fmt::format("The {} kinds of operations that differ most, of {}.",
                                                        kCharted, table.rows.size())
                                          : "The kinds of operations, largest difference first.";
  out.chart = bars_chart("Busy seconds of a step by kind of operation, predicted and measured", "s", bars,
                         {"predicted", "measured"});
  out.tables.push_back(std::move(table));
  return out;
}

}  // namespace

std::vector<ReportSection> comparison_sections(const AnswerView& run) {
  std::vector<ReportSection> out = {parts_section(run)};
  if (ReportSection operations = operations_section(run); !operations.tables.empty())
    out.push_back(std::move(operations));
  return out;
}

ReportChapter compare_chapter(const AnswerView& answer) {
  ReportChapter out;
  out.title = "Predicted against measured";
  const auto runs = answer.items("runs");
  out.subtitle = fmt::format("{} run{}", runs.size(), runs.size() == 1 ? "" : "s");
  if (runs.size() > 1) {
    ReportSection all{.title = "All runs", .lead = "Step times, predicted and measured."};
    ReportTable table{"Step times", {{"run", false}, {"ranks"}, {"predicted"}, {"measured"}, {"ratio"}}};
    std::vector<ChartBar> bars;
    for (const AnswerView& run : runs) {
      const double p = run.number("predicted_step_s"), m = run.number("measured_step_s");
      table.rows.push_back({run.text("run"), fmt::format("{}", run.count("ranks")), seconds_text(p),
                            seconds_text(m), ratio_of(p, m)});
      bars.push_back({run.text("run"), p, seconds_text(p), "blue", m, seconds_text(m)});
    }
    all.chart =
        bars_chart("Step time of each run, predicted and measured", "s", bars, {"predicted", "measured"});
    all.tables.push_back(std::move(table));
    out.sections.push_back(std::move(all));
  }
  for (const AnswerView& run : runs)
    for (ReportSection section : comparison_sections(run)) {
      if (runs.size() > 1) section.title += ": " + run.text("run");
      out.sections.push_back(std::move(section));
    }
  return out;
}

}  // namespace sextant
