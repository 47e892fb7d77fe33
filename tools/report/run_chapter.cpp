#include "tools/report/run_chapter.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "core/base/file_io.hpp"
#include "core/base/json_io.hpp"
#include "core/base/shallow_json.hpp"
#include "core/base/words.hpp"
#include "core/plan/plan_key.hpp"
#include "core/timeline/timeline_file.hpp"
#include "profiler/compare.hpp"
#include "tools/inputs/running.hpp"
#include "tools/output/comparison_text.hpp"
#include "tools/report/answer_chapters.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"
#include "tools/report/step_sections.hpp"
#include "tools/report/timeline_chart.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;

struct Curve {
  std::vector<ChartPoint> points;
  // Of long runs as many points as a chart can show: of each stretch the smallest and the largest.
  std::vector<ChartPoint> shown() const {
    constexpr std::size_t kMost = 1200;
    if (points.size() <= kMost) return points;
    std::vector<ChartPoint> out;
    const std::size_t stretches = kMost / 2;
    for (std::size_t i = 0; i < stretches; ++i) {
      const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / stretches),
                 end = points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / stretches);
      auto [least, most] =
          std::minmax_element(begin, end, [](const auto& a, const auto& b) { return a.y < b.y; });
      if (most < least) std::swap(least, most);
      out.push_back(*least);
      if (most != least) out.push_back(*most);
    }
    return out;
  }
};

struct Steps {
  Curve loss, validation, rate, time, predicted;
  std::size_t skipped = 0;
  double last_loss = 0, last_step = 0;
};

void add_step(const AnswerView& line, Steps& steps) {
  const double step = line.number("step");
  if (line.has("validation_loss")) {
    steps.validation.points.push_back({step, line.number("validation_loss"), {}, {}});
    return;
  }
  if (line.has("loss")) steps.loss.points.push_back({step, line.number("loss"), {}, {}});
  if (line.has("skipped") && line.flag("skipped")) ++steps.skipped;
  steps.rate.points.push_back({step, line.number("tokens_per_s"), {}, {}});
  steps.time.points.push_back({step, line.number("step_time_s"), {}, {}});
  if (line.has("predicted_step_time_s"))
    steps.predicted.points.push_back({step, line.number("predicted_step_time_s"), {}, {}});
  steps.last_step = step;
}

double median_of(const Curve& curve) {
  std::vector<double> values;
  for (const ChartPoint& p : curve.points) values.push_back(p.y);
  if (values.empty()) return 0;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// Ten rows at most, evenly over the run.
ReportTable steps_table(const Steps& s) {
  ReportTable table{"Steps of the run", {{"step"}, {"loss"}, {"tokens/s"}, {"step time"}}};
  const std::size_t n = s.time.points.size(), rows = std::min<std::size_t>(n, 10);
  const auto loss_at = [&](double step) {
    const auto found = std::ranges::find(s.loss.points, step, &ChartPoint::x);
    return found == s.loss.points.end() ? std::string() : fmt::format("{:.4f}", found->y);
  };
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t at = rows == 1 ? 0 : i * (n - 1) / (rows - 1);
    table.rows.push_back({fmt::format("{:.0f}", s.time.points[at].x), loss_at(s.time.points[at].x),
                          rate_text(s.rate.points[at].y), seconds_text(s.time.points[at].y)});
  }
  return table;
}

std::vector<ReportSection> run_sections(const Steps& s, const std::vector<ChartLimit>& changes) {
  std::vector<ReportSection> out;
  if (s.time.points.empty()) return out;
  const std::size_t marked = 60;  // more steps than that are a line without marks
  const bool marks = s.time.points.size() <= marked;
  ReportSection loss{.title = "Loss", .lead = {}};
  if (!s.loss.points.empty()) {
    const ChartPoint &first = s.loss.points.front(), &last = s.loss.points.back();
    loss.lead =
        fmt::format("From {:.4f} at step {:.0f} to {:.4f} at step {:.0f}.", first.y, first.x, last.y, last.x);
    if (!s.validation.points.empty())
      loss.lead += fmt::format(" On held-out text it ends at {:.4f}.", s.validation.points.back().y);
    if (s.skipped > 0)
      loss.lead += fmt::format(" {} steps were skipped: gradients were not finite.", s.skipped);
    ChartLines chart{{.title = "step"}, {.title = "loss"}, {}};
    chart.lines.push_back({.name = "training", .points = s.loss.shown(), .tone = "blue", .marks = marks});
    if (!s.validation.points.empty())
      chart.lines.push_back(
          {.name = "held out", .points = s.validation.shown(), .tone = "red", .dashed = true});
    chart.moments = changes;
    loss.chart = lines_chart("Loss over the steps of the run", chart);
    loss.tables.push_back(steps_table(s));
    out.push_back(std::move(loss));
  }
  ReportSection rate{.title = "Throughput", .lead = {}};
  rate.lead = fmt::format("Half of the steps ran at {} tokens/s or more.", rate_text(median_of(s.rate)));
  ChartLines rates{{.title = "step"}, {.title = "tokens/s", .from_zero = true}, {}};
  rates.lines.push_back({.name = "measured", .points = s.rate.shown(), .tone = "blue", .marks = marks});
  rates.moments = changes;
  rate.chart = lines_chart("Tokens per second over the steps of the run", rates);
  rate.tables.push_back(steps_table(s));
  out.push_back(std::move(rate));
  ReportSection time{.title = "Step time", .lead = {}};
  time.lead = fmt::format("The median step took {}", seconds_text(median_of(s.time)));
  ChartLines times{{.title = "step"}, {.title = "s", .from_zero = true}, {}};
  times.lines.push_back({.name = "measured", .points = s.time.shown(), .tone = "blue", .marks = marks});
  if (!s.predicted.points.empty()) {
    time.lead += fmt::format("; the prediction was {}", seconds_text(median_of(s.predicted)));
    times.lines.push_back(
        {.name = "predicted", .points = s.predicted.shown(), .tone = "red", .marks = false, .dashed = true});
  }
  time.lead += ".";
  times.moments = changes;
  time.chart = lines_chart("Seconds of each step of the run, measured and predicted", times);
  time.tables.push_back(steps_table(s));
  out.push_back(std::move(time));
  return out;
}

// Lines of JSON; the last may have been cut when the run was ended.
template <class Use>
void each_line(const fs::path& path, const Use& use) {
  const std::string text = read_text_file(path), file = path.string();
  const auto lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const auto j = json_or_discarded(lines[i]);
    const std::string where = fmt::format("{}:{}", file, i + 1);
    if (!j.is_object()) {
      if (i + 1 == lines.size()) return;
      throw ConfigError(
          Problem{where, "", "a line that is no JSON object", "what sextant run writes", "remove the line"});
    }
    use(AnswerView(j, where));
  }
}

std::vector<ChartLimit> changes_of(const fs::path& path) {
  std::vector<ChartLimit> out;
  if (!fs::exists(path)) return out;
  each_line(path, [&](const AnswerView& line) {
    const std::string kind = line.text_or("kind", "");
    if (line.has("step") && (kind == "change" || kind == "go_back" || kind == "lost"))
      out.push_back({line.number("step"), words(kind)});
  });
  return out;
}

// What the last step was against its prediction, and both timelines.
void add_comparison(const fs::path& folder, const ReportContext& context, ReportChapter& chapter) {
  RunningOptions running;
  running.plan = (folder / "plan.json").string();
  const Runnable runnable(running, context.profile, context.presets);
  const ExecutionGraph& graph = runnable.graph();
  const Timeline measured = load_timeline(folder / "timeline.json", graph_hash(graph), graph.ops.size());
  const TimelineComparison comparison = compare(graph, runnable.predicted(), measured);
  const nlohmann::json compared = comparison_json(comparison);
  const std::string file = (folder / "timeline.json").string();
  for (ReportSection section : comparison_sections(AnswerView(compared, file)))
    chapter.sections.push_back(std::move(section));
  ReportSection both{.title = kTimelineTitle,
                     .lead = "The last step as it was predicted, and as it was measured."};
  both.chart = timeline_chart("One step of every stage, predicted and measured", graph,
                              {{"predicted", &runnable.predicted()}, {"measured", &measured}});
  both.tables = {stages_table("Predicted seconds in which a stage computes and waits", comparison.predicted),
                 stages_table("Measured seconds in which a stage computes and waits", comparison.measured)};
  chapter.sections.push_back(std::move(both));
}

}  // namespace

ReportChapter run_folder_chapter(const std::string& folder, const ReportContext& context) {
  const fs::path path = folder;
  if (!fs::exists(path / "steps.jsonl"))
    throw ConfigError(Problem{folder, "", "a folder without steps.jsonl", "a folder of: sextant run -o",
                              "was the run ended before its first step?"});
  ReportChapter out;
  const PlanFile plan = load_plan_file(path / "plan.json");
  out.title = fmt::format(
      "Run {}", path.filename().empty() ? path.parent_path().filename().string() : path.filename().string());
  out.subtitle = fmt::format("{} on {} × {}, {}", plan.model.name, plan.plan.world(),
                             plan.cluster.device.name, plan_key(plan.plan));
  out.source = folder + ": folder of sextant run";
  Steps steps;
  each_line(path / "steps.jsonl", [&](const AnswerView& line) { add_step(line, steps); });
  out.sections = run_sections(steps, changes_of(path / "adaptation.jsonl"));
  if (out.sections.empty())
    out.sections.push_back({.title = "No step", .lead = "The run was ended before its first step."});
  if (fs::exists(path / "timeline.json")) add_comparison(path, context, out);
  return out;
}

ReportChapter run_chapter(const AnswerView& answer) {
  ReportChapter out;
  out.title = "Run of " + answer.text("plan");
  out.subtitle = "sextant run";
  Steps steps;
  for (const AnswerView& step : answer.items("steps")) add_step(step, steps);
  for (const AnswerView& evaluation : answer.items("evaluations")) add_step(evaluation, steps);
  std::vector<ChartLimit> changes;
  for (const AnswerView& decision : answer.items("adaptation"))
    if (decision.text_or("kind", "") == "change" && decision.has("step"))
      changes.push_back({decision.number("step"), "change"});
  out.sections = run_sections(steps, changes);
  if (answer.has("comparison"))
    for (ReportSection section : comparison_sections(answer.at("comparison")))
      out.sections.push_back(std::move(section));
  if (out.sections.empty())
    out.sections.push_back({.title = "No step", .lead = "The run was ended before its first step."});
  return out;
}

}  // namespace sextant
