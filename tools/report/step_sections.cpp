#include "tools/report/step_sections.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/words.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"
#include "tools/report/timeline_chart.hpp"

namespace sextant {
namespace {

constexpr double kSmallest = 5e-4;  // share of the step below which a part has no bar

double value_at(const std::vector<std::pair<std::string, double>>& of, const std::string& name) {
  const auto found = std::ranges::find(of, name, &std::pair<std::string, double>::first);
  return found == of.end() ? 0 : found->second;
}

}  // namespace

std::vector<StageHolds> stages_of(const MemoryEstimate& memory) {
  std::vector<StageHolds> out;
  for (std::size_t i = 0; i < memory.stages.size(); ++i) {
    const StageMemory& m = memory.stages[i];
    StageHolds stage{fmt::format("{}", i), {}, gib(m.needed())};
    for (std::size_t k = 0; k < kBufferKinds; ++k)
      if (const auto kind = static_cast<BufferKind>(k); kind != BufferKind::host)
        stage.GiB.emplace_back(words(name(kind)), gib(Bytes(m.at_peak[k])));
    stage.GiB.emplace_back("allocator reserve", gib(m.fragmented));
    stage.GiB.emplace_back("context and libraries", gib(m.outside));
    out.push_back(std::move(stage));
  }
  return out;
}

ReportSection memory_section(const std::vector<StageHolds>& stages, double available_GiB) {
  ReportSection out{.title = kMemoryTitle, .lead = {}};
  if (stages.empty()) return out;
  std::size_t heaviest = 0;
  std::vector<std::string> names, columns;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    columns.push_back(stages[i].stage);
    if (stages[i].peak_GiB > stages[heaviest].peak_GiB) heaviest = i;
    for (const auto& [name, GiB] : stages[i].GiB)
      if (GiB > 0 && std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  std::vector<ChartSeries> series;
  for (const std::string& name : names) {
    ChartSeries s{name, {}, tone_of(name)};
    for (const StageHolds& stage : stages) s.values.push_back(value_at(stage.GiB, name));
    series.push_back(std::move(s));
  }
  const StageHolds& full = stages[heaviest];
  const auto largest = std::ranges::max_element(full.GiB, {}, &std::pair<std::string, double>::second);
  const std::string room =
      full.peak_GiB <= available_GiB
          ? fmt::format("{} GiB of {} GiB are left", gib_text(available_GiB - full.peak_GiB),
                        gib_text(available_GiB))
          : fmt::format("{} GiB more than the {} GiB there are", gib_text(full.peak_GiB - available_GiB),
                        gib_text(available_GiB));
  const std::string who = stages.size() == 1 ? "Each GPU" : "Stage " + full.stage + ", the fullest,";
  out.lead = fmt::format("{} peaks at {} GiB: {}. Most of it is {} ({} GiB).", who, gib_text(full.peak_GiB),
                         room, largest->first, gib_text(largest->second));
  out.chart = stacks_chart("Memory of each stage at its peak, by category, against what a GPU has", "stage",
                           "GiB", columns, series,
                           ChartLimit{available_GiB, fmt::format("{} GiB usable", gib_text(available_GiB))});
  ReportTable table{"GiB at the peak of each stage", {{"stage"}}};
  for (const std::string& name : names) table.columns.push_back({name});
  table.columns.push_back({"peak"});
  for (const StageHolds& stage : stages) {
    std::vector<std::string> cells = {stage.stage};
    for (const std::string& name : names) cells.push_back(gib_text(value_at(stage.GiB, name)));
    cells.push_back(gib_text(stage.peak_GiB));
    table.rows.push_back(std::move(cells));
  }
  table.emphasized = stages.size() > 1 ? static_cast<int>(heaviest) : -1;
  out.tables.push_back(std::move(table));
  return out;
}

std::vector<std::pair<std::string, double>> parts_of(const TimeSplit& split) {
  std::vector<std::pair<std::string, double>> out;
  for (std::size_t i = 0; i < split.size(); ++i)
    out.emplace_back(part_text(name(static_cast<TimeCategory>(i))), split[i]);
  return out;
}

ReportSection time_section(const ChapterParts& parts) {
  ReportSection out{.title = kTimeTitle, .lead = {}};
  std::vector<std::pair<std::string, double>> sorted;
  for (const auto& part : parts.mean)
    if (part.second > kSmallest * parts.step_s) sorted.push_back(part);
  if (sorted.empty()) return out;
  std::ranges::stable_sort(sorted, std::greater{}, &std::pair<std::string, double>::second);
  std::vector<ChartBar> bars;
  std::vector<std::string> others;
  for (const auto& [name, seconds] : sorted) {
    bars.push_back({name, seconds,
                    fmt::format("{} · {}", share_text(seconds / parts.step_s), seconds_text(seconds)),
                    tone_of(name)});
    if (others.size() < 2 && &name != &sorted.front().first)
      others.push_back(fmt::format("{} ({})", name, share_text(seconds / parts.step_s)));
  }
  out.lead = fmt::format("{} of the step is {}", share_text(sorted.front().second / parts.step_s),
                         sorted.front().first);
  out.lead +=
      others.empty() ? "." : fmt::format("; the largest other parts are {}.", fmt::join(others, " and "));
  out.chart = bars_chart("Seconds of the step by what they are spent on, mean over stages", "s", bars);
  ReportTable table{"Seconds of the step, mean over stages", {{"part", false}, {"s"}, {"% of the step"}}};
  for (const auto& [name, seconds] : parts.mean)
    if (seconds > 0 || parts.step_s == 0)
      table.rows.push_back(
          {name, fmt::format("{:.4f}", seconds), fmt::format("{:.1f}", 100 * seconds / parts.step_s)});
  table.rows.push_back({"step", fmt::format("{:.4f}", parts.step_s), "100.0"});
  table.emphasized = static_cast<int>(table.rows.size()) - 1;
  out.tables.push_back(std::move(table));
  if (parts.stages.size() > 1) {
    ReportTable by_stage{"Seconds by stage", {{"stage"}}};
    std::vector<std::string> names;
    for (const auto& [name, seconds] : sorted)
      if (std::ranges::any_of(parts.stages,
                              [&, &part = name](const auto& stage) { return value_at(stage, part) > 0; }))
        names.push_back(name);
    for (const std::string& name : names) by_stage.columns.push_back({name});
    for (std::size_t i = 0; i < parts.stages.size(); ++i) {
      std::vector<std::string> cells = {fmt::format("{}", i)};
      for (const std::string& name : names)
        cells.push_back(fmt::format("{:.4f}", value_at(parts.stages[i], name)));
      by_stage.rows.push_back(std::move(cells));
    }
    out.tables.push_back(std::move(by_stage));
  }
  return out;
}

ReportTable stages_table(const std::string& caption, const Breakdown& split) {
  ReportTable table{caption, {{"stage"}, {"computes"}, {"exposed communication"}, {"waits"}, {"idle %"}}};
  for (std::size_t i = 0; i < split.stages.size(); ++i) {
    const auto seconds = [&](TimeCategory c) { return split.stages[i][static_cast<std::size_t>(c)]; };
    const double idle = seconds(TimeCategory::bubble) + seconds(TimeCategory::imbalance);
    const double works =
        seconds(TimeCategory::compute) + seconds(TimeCategory::recompute) + seconds(TimeCategory::optimizer);
    const double total = split.step.v;
    table.rows.push_back({fmt::format("{}", i), fmt::format("{:.4f}", works),
                          fmt::format("{:.4f}", std::max(0.0, total - works - idle)),
                          fmt::format("{:.4f}", idle), fmt::format("{:.1f}", 100 * idle / total)});
  }
  return table;
}

ReportSection timeline_section(const PlannedStep& step) {
  const ParallelPlan& plan = step.graph.plan;
  ReportSection out{.title = kTimelineTitle, .lead = {}};
  out.lead = fmt::format(
      "When each stage computes, micro-batch by micro-batch: {} operations in {}. Gaps are time in which a "
      "stage "
      "waits.",
      count_words(static_cast<double>(step.graph.ops.size())), seconds_text(step.timeline.makespan().v));
  out.chart = timeline_chart("One step: what each stage does from its begin to its end", step.graph,
                             {{"", &step.timeline}});
  out.tables.push_back(stages_table("Seconds of the step in which a stage computes and waits", step.split));
  out.notes.emplace_back(plan.tp > 1 || plan.cp > 1
                             ? "Collectives of TP and CP lie inside the blocks. sextant simulate --trace "
                               "shows every operation in Perfetto."
                             : "sextant simulate --trace shows every operation in Perfetto.");
  return out;
}

}  // namespace sextant
