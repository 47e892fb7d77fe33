#include "tools/report/charts.hpp"

#include <array>
#include <utility>

namespace sextant {
namespace {

constexpr std::array<std::pair<std::string_view, const char*>, 24> kTones = {{
    {"compute", "blue"},
    {"recompute", "sky"},
    {"exposed TP", "orange"},
    {"exposed CP", "yellow"},
    {"exposed PP", "purple"},
    {"exposed DP", "red"},
    {"optimizer", "green"},
    {"offload", "yellow hatch"},
    {"bubble", "grey"},
    {"imbalance", "grey hatch"},
    {"jitter", "purple hatch"},
    {"stragglers and host", "ink hatch"},
    {"parameters", "blue"},
    {"gradients", "red"},
    {"optimizer state", "green"},
    {"activations", "sky"},
    {"logits", "yellow"},
    {"communication", "purple"},
    {"workspace", "orange"},
    {"allocator reserve", "grey hatch"},
    {"context and libraries", "grey"},
    {"forward", "blue"},
    {"backward", "green"},
    {"weight gradients", "sky hatch"},
}};

constexpr std::array<const char*, 8> kSeries = {"blue",   "red", "green",      "orange",
                                                "purple", "sky", "blue hatch", "red hatch"};

Chart axis_json(const ChartAxis& axis) {
  return {{"title", axis.title}, {"log", axis.logarithmic}, {"zero", axis.from_zero}};
}

Chart limit_json(const ChartLimit& limit) { return {{"value", limit.value}, {"label", limit.label}}; }

}  // namespace

std::string tone_of(std::string_view name) {
  for (const auto& [known, tone] : kTones)
    if (known == name) return tone;
  return "ink";
}

std::string tone_of(std::size_t series) { return kSeries[series % kSeries.size()]; }

Chart bars_chart(const std::string& about, const std::string& unit, const std::vector<ChartBar>& bars,
                 const std::vector<std::string>& legend) {
  Chart rows = Chart::array();
  for (const ChartBar& bar : bars) {
    Chart row = {{"name", bar.name}, {"value", bar.value}, {"label", bar.label}, {"tone", bar.tone}};
    if (bar.other) {
      row["other"] = *bar.other;
      row["other_label"] = bar.other_label;
    }
    rows.push_back(row);
  }
  return {{"kind", "bars"}, {"about", about}, {"unit", unit}, {"legend", legend}, {"rows", rows}};
}

Chart stacks_chart(const std::string& about, const std::string& x_title, const std::string& unit,
                   const std::vector<std::string>& columns, const std::vector<ChartSeries>& series,
                   const std::optional<ChartLimit>& limit) {
  Chart all = Chart::array();
  for (const ChartSeries& s : series)
    all.push_back({{"name", s.name}, {"values", s.values}, {"tone", s.tone}});
  Chart out = {{"kind", "stacks"}, {"about", about},     {"x", x_title},
               {"unit", unit},     {"columns", columns}, {"series", all}};
  if (limit) out["limit"] = limit_json(*limit);
  return out;
}

Chart lines_chart(const std::string& about, const ChartLines& chart) {
  Chart lines = Chart::array(), moments = Chart::array();
  for (const ChartLine& line : chart.lines) {
    Chart points = Chart::array();
    for (const ChartPoint& p : line.points) {
      Chart point = {p.x, p.y};
      if (!p.name.empty() || !p.label.empty()) point.push_back(p.name);
      if (!p.label.empty()) point.push_back(p.label);
      points.push_back(point);
    }
    lines.push_back({{"name", line.name},
                     {"tone", line.tone},
                     {"line", line.line},
                     {"marks", line.marks},
                     {"dashed", line.dashed},
                     {"points", points}});
  }
  for (const ChartLimit& moment : chart.moments) moments.push_back(limit_json(moment));
  Chart out = {{"kind", "lines"},         {"about", about},     {"x", axis_json(chart.x)},
               {"y", axis_json(chart.y)}, {"moments", moments}, {"diagonal", chart.diagonal},
               {"lines", lines}};
  if (chart.limit) out["limit"] = limit_json(*chart.limit);
  return out;
}

}  // namespace sextant
