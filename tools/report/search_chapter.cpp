#include "tools/report/search_chapter.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/base/words.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/output/recommendation_text.hpp"
#include "tools/report/charts.hpp"
#include "tools/report/quantity_text.hpp"

namespace sextant {
namespace {

std::vector<std::string> layout_cells(const AnswerView& one, const std::string& first) {
  const double risk = one.number_or("chance_of_overflow", 0);
  return {first,
          one.text("key"),
          seconds_text(one.number("step_time_s")),
          one.has("slower_share") ? signed_share_text(one.number("slower_share")) : "",
          gib_text(one.number("peak_memory_GiB")),
          oom_risk_text(risk)};
}

ReportSection recommended_section(const AnswerView& answer) {
  const AnswerView best = answer.at("recommended");
  ReportSection out{.title = kLayoutTitle, .lead = {}};
  out.lead = fmt::format("{}. {}", best.text_or("layout", best.text("key")), best.text_or("why", ""));
  out.tiles = prediction_tiles(best);
  if (answer.has("evidence")) {
    const AnswerView evidence = answer.at("evidence");
    out.notes.push_back(fmt::format(
        "{} measured runs combine these kinds of parallelism on such GPUs; {} are of this stack or of "
        "stacks built on the same code.",
        evidence.count("runs_near"), evidence.count("runs_near_of_stack")));
  }
  for (const std::string& note : answer.texts("notes")) out.notes.push_back(note);
  return out;
}

// Step over memory: the recommended one, what else was offered, and the ranking on paper.
ReportSection alternatives_section(const AnswerView& answer) {
  ReportSection out{.title = "What else to try", .lead = {}};
  ReportTable table{"The recommended layout, and what else to try; against it",
                    {{"kind", false}, {"layout", false}, {"step"}, {"time"}, {"GiB"}, {"OOM risk"}}};
  const AnswerView best = answer.at("recommended");
  table.rows.push_back(layout_cells(best, "recommended"));
  table.rows.back()[3] = "";
  table.emphasized = 0;
  const auto point = [](const AnswerView& one, const std::string& label) {
    return ChartPoint{one.number("peak_memory_GiB"), one.number("step_time_s"), one.text("key"), label};
  };
  ChartLines chart{{.title = "peak memory, GiB"}, {.title = "step, s"}, {}};
  chart.lines.push_back(
      {.name = "recommended", .points = {point(best, "recommended")}, .tone = "red", .line = false});
  ChartLine others{"other layouts", {}, "blue", false};
  for (const AnswerView& one : answer.items("alternatives")) {
    const std::string kind = one.text_or("kind", "another");
    others.points.push_back(point(one, kind == "other parallelism" ? "" : kind));
    table.rows.push_back(layout_cells(one, kind));
  }
  if (others.points.empty()) return out;
  chart.lines.push_back(std::move(others));
  if (const double available = best.number_or("available_memory_GiB", 0); available > 0)
    chart.limit = ChartLimit{available, fmt::format("{} GiB usable", gib_text(available))};
  out.lead = fmt::format(
      "{} other layouts that a reader may want instead: faster with more risk, with less memory, or simpler.",
      table.rows.size() - 1);
  out.chart = lines_chart("Step time over peak memory of the recommended layout and its alternatives", chart);
  out.tables.push_back(std::move(table));
  out.table_open = true;
  return out;
}

ReportSection scale_section(const AnswerView& answer) {
  ReportSection out{.title = "Scaling curve", .lead = {}};
  ReportTable table{"The best layout of every size, at the same global batch",
                    {{"GPUs"}, {"layout", false}, {"step"}, {"tokens/s"}, {"efficiency"}, {"GiB"}}};
  ChartLine reached{"predicted", {}, "blue"},
      ideal{"if every GPU did as much as at the smallest size", {}, "grey"};
  ideal.marks = false;
  ideal.dashed = true;
  for (const AnswerView& size : answer.items("scale")) {
    const double gpus = size.number("gpus");
    if (!size.has("best")) {
      table.rows.push_back({fmt::format("{:.0f}", gpus), "nothing fits or divides", "", "", "", ""});
      continue;
    }
    const AnswerView best = size.at("best");
    const double rate = best.number("tokens_per_s"), efficiency = size.number("efficiency");
    reached.points.push_back({gpus, rate, best.text("key"), share_text(efficiency)});
    const auto& first = reached.points.front();
    ideal.points.push_back({gpus, first.y * gpus / first.x, {}, {}});
    table.rows.push_back({fmt::format("{:.0f}", gpus), best.text("key"),
                          seconds_text(best.number("step_time_s")), rate_text(rate), share_text(efficiency),
                          gib_text(best.number("peak_memory_GiB"))});
  }
  out.tables.push_back(std::move(table));
  if (reached.points.empty()) {
    out.lead = "No size of the cluster has a layout that fits.";
    return out;
  }
  const ChartPoint &first = reached.points.front(), &last = reached.points.back();
  out.lead = fmt::format(
      "From {:.0f} to {:.0f} GPUs the rate rises {:.1f} times: {} of what as many of the smallest "
      "size would do.",
      first.x, last.x, last.y / first.y, share_text(last.y / last.x / (first.y / first.x)));
  ChartLines chart{{.title = "GPUs", .from_zero = true}, {.title = "tokens/s", .from_zero = true}, {}};
  chart.lines = {ideal, reached};
  out.chart =
      lines_chart("Tokens per second over the number of GPUs, with the efficiency at each size", chart);
  out.table_open = true;
  return out;
}

ReportSection pareto_section(const AnswerView& answer) {
  ReportSection out{.title = "Memory against time", .lead = {}};
  ReportTable table{"The Pareto front: no layout is faster with less memory",
                    {{"", true}, {"layout", false}, {"step"}, {"against the first"}, {"GiB"}, {"OOM risk"}}};
  ChartLine front{"Pareto front", {}, "blue"};
  double available = 0;
  for (const AnswerView& one : answer.items("pareto")) {
    const std::string number = fmt::format("{}", table.rows.size() + 1);
    front.points.push_back(
        {one.number("peak_memory_GiB"), one.number("step_time_s"), one.text("key"), number});
    table.rows.push_back(layout_cells(one, number));
    available = one.number_or("available_memory_GiB", available);
  }
  if (front.points.empty()) return out;
  const ChartPoint first = front.points.front(), last = front.points.back();
  out.lead = fmt::format(
      "Each of {} layouts is the fastest with its memory. The last needs {} GiB less than the first "
      "and takes {} as long.",
      front.points.size(), gib_text(first.x - last.x), fmt::format("{:.2f} times", last.y / first.y));
  ChartLines chart{{.title = "peak memory, GiB"}, {.title = "step, s"}, {}};
  chart.lines.push_back(std::move(front));
  if (available > 0) chart.limit = ChartLimit{available, fmt::format("{} GiB usable", gib_text(available))};
  out.chart = lines_chart("Step time over peak memory of the layouts that no other beats in both", chart);
  out.tables.push_back(std::move(table));
  out.table_open = true;
  return out;
}

// Objectives that recommend nothing rank layouts.
ReportSection ranked_section(const AnswerView& answer) {
  ReportSection out{.title = "Ranking", .lead = {}};
  ReportTable table{"The layouts that were found, best first",
                    {{"", true}, {"layout", false}, {"step"}, {"against the first"}, {"GiB"}, {"OOM risk"}}};
  std::vector<ChartBar> bars;
  for (const AnswerView& one : answer.items("ranked")) {
    table.rows.push_back(layout_cells(one, fmt::format("{}", table.rows.size() + 1)));
    bars.push_back(
        {one.text("key"), one.number("step_time_s"), seconds_text(one.number("step_time_s")), "blue"});
  }
  if (bars.empty()) return out;
  out.lead = fmt::format("The best of {} layouts by the objective {}.", bars.size(),
                         answer.text_or("objective", "throughput"));
  out.chart = bars_chart("Step time of the layouts that were found", "s", bars);
  out.tables.push_back(std::move(table));
  return out;
}

}  // namespace

std::vector<ReportTile> prediction_tiles(const AnswerView& p) {
  std::vector<ReportTile> tiles;
  tiles.push_back({"step time", seconds_text(p.number("step_time_s")),
                   fmt::format("{} to {} in nine of ten cases", seconds_text(p.number("step_time_s_lower")),
                               seconds_text(p.number("step_time_s_upper")))});
  tiles.push_back({"tokens/s/GPU", rate_text(p.number("tokens_per_s_per_gpu")),
                   fmt::format("{} tokens/s in all", rate_text(p.number("tokens_per_s")))});
  tiles.push_back({"MFU", share_text(p.number("mfu")),
                   fmt::format("{:.0f} model TFLOP/s/GPU", p.number("model_tflops_per_gpu"))});
  tiles.push_back({"peak memory", gib_text(p.number("peak_memory_GiB")) + " GiB",
                   fmt::format("of {} GiB; OOM risk {}", gib_text(p.number("available_memory_GiB")),
                               oom_risk_text(p.number_or("chance_of_overflow", 0)))});
  if (const double usd = p.number_or("usd_per_million_tokens", 0); usd > 0)
    tiles.push_back({"price", fmt::format("{:.4f} $", usd), "per million tokens, at the list price"});
  return tiles;
}

void set_question(const AnswerView& answer, ReportChapter& chapter) {
  chapter.title = fmt::format("{} on {} GPUs", answer.text("model"), answer.count("gpus"));
  chapter.question = question_id(answer.text("model"), answer.count("gpus"), answer.text("stack"),
                                 answer.count("seq_len"), answer.count("global_batch"));
  chapter.subtitle = fmt::format("{} parameters; {}; {}; {} sequences of {} tokens a step",
                                 rate_text(answer.number("parameters")), answer.text("cluster"),
                                 answer.text("stack"), answer.count("global_batch"), answer.count("seq_len"));
}

ReportSection outcomes_section(const AnswerView& answer) {
  static const std::map<std::string, std::pair<int, const char*>> kMeaning = {
      {"not_divisible", {0, "sizes do not divide model, batch or GPUs"}},
      {"inconsistent", {1, "fields contradict each other"}},
      {"unsupported_by_stack", {2, "the software cannot run them"}},
      {"outside_limits", {3, "outside what was asked for"}},
      {"duplicate", {4, "the same as another one"}},
      {"out_of_memory", {5, "do not fit"}},
      {"pruned_by_bound", {6, "cannot be faster than what was found, by a lower bound"}},
      {"simulated", {7, "simulated in full"}},
      {"not_visited", {8, "not looked at: the search ended early"}}};
  ReportSection out{.title = "Why others lost", .lead = {}};
  ReportTable counts{"What became of all layouts", {{"layouts"}, {"outcome", false}, {"meaning", false}}};
  std::vector<std::pair<int, std::vector<std::string>>> rows;
  for (const auto& [key, n] : answer.numbers("outcomes"))
    if (const auto known = kMeaning.find(key); known != kMeaning.end() && n > 0)
      rows.push_back({known->second.first, {count_words(n), words(key), known->second.second}});
  if (rows.empty()) return out;
  std::ranges::stable_sort(rows, {}, &std::pair<int, std::vector<std::string>>::first);
  for (auto& [order, cells] : rows) counts.rows.push_back(std::move(cells));
  out.tables.push_back(std::move(counts));
  ReportTable examples{"Examples", {{"layout", false}, {"outcome", false}, {"reason", false}}};
  std::map<std::string, int> shown;
  for (const AnswerView& e : answer.items("examples"))
    if (++shown[e.text("outcome")] <= 2)
      examples.rows.push_back({e.text("key"), words(e.text("outcome")), words(e.text("reason"))});
  if (!examples.rows.empty()) out.tables.push_back(std::move(examples));
  out.lead = fmt::format("{} layouts were in question", count_words(answer.number_or("space", 0)));
  if (const double bound = answer.number_or("best_bound_s", 0); bound > 0)
    out.lead += fmt::format("; none on the search grid takes less than {}{}", seconds_text(bound),
                            answer.has("exact") && answer.flag("exact") ? ", which is proved" : "");
  out.lead += ".";
  out.table_open = true;
  return out;
}

std::string question_id(const std::string& model, std::int64_t gpus, const std::string& stack,
                        std::int64_t seq_len, std::int64_t global_batch) {
  return fmt::format("{} on {} GPUs, {}, {} x {}", model, gpus, stack, global_batch, seq_len);
}

ReportChapter search_chapter(const AnswerView& answer) {
  ReportChapter out;
  set_question(answer, out);
  const auto add = [&](ReportSection section) {
    if (!section.tables.empty() || !section.tiles.empty()) out.sections.push_back(std::move(section));
  };
  if (answer.has("recommended")) {
    out.key = answer.at("recommended").text("key");
    add(recommended_section(answer));
    add(alternatives_section(answer));
  }
  if (answer.has("scale")) add(scale_section(answer));
  if (answer.has("pareto")) add(pareto_section(answer));
  if (!answer.has("recommended")) add(ranked_section(answer));
  add(outcomes_section(answer));
  if (out.sections.empty())
    out.sections.push_back({.title = "Nothing was found",
                            .lead = "No layout of the question is feasible, or none was found in time."});
  return out;
}

}  // namespace sextant
