#include <algorithm>
#include <functional>
#include <map>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "core/timeline/measurement_name.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"

namespace sextant {
namespace {

ReportSection rates_section(const MachineFacts& facts) {
  ReportSection out{.title = "What the machine does", .lead = "GEMMs, copies and launches, each alone."};
  ReportTable table{"Measurements",
                    {{"what", false}, {"concurrent with", false}, {"median"}, {"TFLOP/s"}, {"GB/s"}}};
  std::vector<ChartBar> gemms;
  for (const MachineMeasurement& m : facts.measurements) {
    table.rows.push_back({words(m.what), m.concurrent_with.empty() ? "nothing" : words(m.concurrent_with),
                          seconds_text(1e-6 * m.median_us),
                          m.rate_TFLOPS > 0 ? fmt::format("{:.1f}", m.rate_TFLOPS) : "",
                          m.rate_GBps > 0 ? fmt::format("{:.1f}", m.rate_GBps) : ""});
    if (m.rate_TFLOPS > 0 && m.concurrent_with.empty())
      gemms.push_back({words(m.what), m.rate_TFLOPS, fmt::format("{:.1f} TFLOP/s", m.rate_TFLOPS), "blue"});
  }
  if (!gemms.empty()) out.chart = bars_chart("Rate of GEMMs", "TFLOP/s", gemms);
  out.tables.push_back(std::move(table));
  return out;
}

ReportSection device_collectives_section(const MachineFacts& facts) {
  ReportSection out{.title = "Collectives",
                    .lead = "What a ring sends per second, by the size of the collective."};
  std::map<std::string, ChartLine> lines;
  for (const MachineMeasurement& m : facts.measurements) {
    const Measured what = parse_measurement(m.what);
    const auto* collective = std::get_if<MeasuredCollective>(&what);
    if (!collective || !m.concurrent_with.empty() || !(m.rate_GBps > 0)) continue;
    std::string name =
        fmt::format("{}, {} ranks", words(m.what.substr(0, m.what.find(' '))), collective->ranks);
    if (collective->nodes > 1) name += fmt::format(" on {} nodes", collective->nodes);
    ChartLine& line = lines[name];
    line.name = name;
    line.points.push_back({static_cast<double>(collective->bytes.v), m.rate_GBps, m.what, {}});
  }
  ChartLines chart{{.title = "bytes", .logarithmic = true}, {.title = "GB/s", .logarithmic = true}, {}};
  for (auto& [name, line] : lines) {
    std::ranges::sort(line.points, {}, &ChartPoint::x);
    line.tone = tone_of(chart.lines.size());
    chart.lines.push_back(std::move(line));
  }
  if (!chart.lines.empty()) out.chart = lines_chart("Bandwidth of collectives over their size", chart);
  return out;
}

ReportSection works_section(const WorkProfile& profile) {
  ReportSection out{.title = "Operations", .lead = {}};
  ReportTable table{"Measured operations, longest first",
                    {{"operation", false}, {"mean"}, {"median"}, {"spread"}, {"samples"}}};
  std::vector<std::pair<std::string, MeasuredWork>> works(profile.works.begin(), profile.works.end());
  std::ranges::stable_sort(works, std::greater{}, [](const auto& w) { return w.second.mean_us; });
  std::vector<ChartBar> bars;
  constexpr std::size_t kCharted = 15;
  for (const auto& [key, w] : works) {
    if (bars.size() < kCharted)
      bars.push_back({words(key), 1e-6 * w.mean_us, seconds_text(1e-6 * w.mean_us), "blue"});
    table.rows.push_back({words(key), seconds_text(1e-6 * w.mean_us), seconds_text(1e-6 * w.median_us),
                          seconds_text(1e-6 * w.spread_us), fmt::format("{}", w.samples)});
  }
  if (bars.empty()) return out;
  out.lead = fmt::format("{} kinds of operations were timed by {}; the longest {}.", works.size(),
                         profile.timed_by, bars.size());
  out.chart = bars_chart("Mean time of the longest operations", "s", bars);
  out.tables.push_back(std::move(table));
  return out;
}

ReportSection conditions_section(const MachineFacts& facts) {
  ReportSection out{.title = "Clocks and heat",
                    .lead = "The state of the GPU before each part of the measurement."};
  ReportTable table{"Conditions", {{"when", false}, {"clock MHz"}, {"°C"}, {"W"}, {"limited by", false}}};
  ChartLine clock{"clock of the multiprocessors", {}, "blue"};
  for (const MachineCondition& c : facts.conditions) {
    table.rows.push_back({c.at, fmt::format("{:.0f}", c.sm_clock_MHz), fmt::format("{:.0f}", c.temperature_C),
                          fmt::format("{:.0f}", c.power_W), c.limited_by});
    if (c.sm_clock_MHz > 0) clock.points.push_back({c.time_s, c.sm_clock_MHz, c.at, {}});
  }
  if (table.rows.empty()) return out;
  if (clock.points.size() > 1) {
    ChartLines chart{{.title = "s since the measurement began", .from_zero = true},
                     {.title = "MHz", .from_zero = true},
                     {}};
    chart.lines.push_back(std::move(clock));
    out.chart = lines_chart("Clock of the multiprocessors while it was measured", chart);
  }
  out.tables.push_back(std::move(table));
  return out;
}

}  // namespace

ReportChapter profile_chapter(const WorkProfile& profile) {
  ReportChapter out{.title = profile.machine,
                    .subtitle = fmt::format("measured on {}, {} rank{}", profile.date, profile.ranks,
                                            profile.ranks == 1 ? "" : "s"),
                    .key = {},
                    .question = {},
                    .source = {}};
  const auto add = [&](ReportSection section) {
    if (!section.tables.empty() || !section.chart.is_null()) out.sections.push_back(std::move(section));
  };
  if (profile.facts) {
    if (!profile.facts->measurements.empty()) {
      add(rates_section(*profile.facts));
      add(device_collectives_section(*profile.facts));
    }
    add(works_section(profile));
    add(conditions_section(*profile.facts));
  } else {
    add(works_section(profile));
  }
  if (out.sections.empty())
    out.sections.push_back({.title = "Nothing was measured", .lead = "The profile has no operation."});
  for (const std::string& note : profile.notes) out.sections.front().notes.push_back(note);
  return out;
}

}  // namespace sextant
