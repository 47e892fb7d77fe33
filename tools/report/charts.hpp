// The charts of a report as data for tools/report/page/: which marks, names, units and colours. Colours are words ("blue",
// "grey hatch") whose values stand in report.css, from the palette of Okabe and Ito; a pattern tells apart what a colour may not.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace sextant {

using Chart = nlohmann::ordered_json;

// Of a part of the step, a category of memory, or the n-th series of a chart.
std::string tone_of(std::string_view name);
std::string tone_of(std::size_t series);

struct ChartBar {
  std::string name;
  double value = 0;
  std::string label;  // beside the bar: the value in words
  std::string tone = "blue";
  std::optional<double> other = {};  // a second bar beneath: what was measured of what was predicted
  std::string other_label = {};
};
// Bars that lie, one or two a row. `legend`: what the first and the second bar are, where there are two.
Chart bars_chart(const std::string& about, const std::string& unit, const std::vector<ChartBar>&,
                 const std::vector<std::string>& legend = {});

struct ChartSeries {
  std::string name;
  std::vector<double> values;
  std::string tone;
};
struct ChartLimit {
  double value = 0;
  std::string label;
};
// Columns that stand, each a stack of the series, against a limit.
Chart stacks_chart(const std::string& about, const std::string& x_title, const std::string& unit,
                   const std::vector<std::string>& columns, const std::vector<ChartSeries>&,
                   const std::optional<ChartLimit>&);

struct ChartAxis {
  std::string title;
  bool logarithmic = false;
  bool from_zero = false;
};
struct ChartPoint {
  double x = 0, y = 0;
  std::string name = {}, label = {};  // in the tooltip; beside the mark
};
struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points;
  std::string tone;
  bool line = true, marks = true, dashed = false;
};
struct ChartLines {
  ChartAxis x, y;
  std::vector<ChartLine> lines;
  std::optional<ChartLimit> limit = {};  // across: a value of x
  std::vector<ChartLimit> moments = {};  // something happened at x
  bool diagonal = false;                 // where x = y
};
Chart lines_chart(const std::string& about, const ChartLines&);

}  // namespace sextant
