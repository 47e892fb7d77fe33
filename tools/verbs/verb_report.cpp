// `sextant report`: answers of the other verbs as one HTML page with charts.
#include <chrono>
#include <memory>
#include <ostream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file_io.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/version.hpp"
#include "tools/report/html_page.hpp"
#include "tools/report/read_answer.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

struct ReportOptions {
  std::vector<std::string> answers;
  std::string output, title;
  std::string calibration, profile, tokens;
};

std::string made_text() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{}, {:%Y-%m-%d %H:%M} UTC", version_text(), fmt::gmtime(now));
}

ExitCode run(Session& session, const ReportOptions& o) {
  if (o.answers.empty())
    throw UsageError(
        "an answer is missing\n  for example: sextant report plan.json -o report.html, where plan.json is "
        "of: "
        "sextant plan -o");
  if (o.output.empty()) throw UsageError("-o is missing\n  for example: -o report.html");
  std::vector<std::string> others = o.answers;
  for (const std::string& file : {o.calibration, o.profile})
    if (!file.empty()) others.push_back(file);
  check_output("--output", o.output, others);
  const ReportContext context{session.presets(), o.calibration, o.profile, o.tokens};
  Report report;
  for (const std::string& answer : o.answers) add_chapter(report, read_answer(answer, context));
  report.title = !o.title.empty() ? o.title : report.chapters.front().title;
  report.made = made_text();
  const std::string page = html_page(report);
  write_file_atomic(o.output, page);
  std::size_t sections = 0, charts = 0;
  for (const ReportChapter& chapter : report.chapters)
    for (const ReportSection& section : chapter.sections) {
      ++sections;
      charts += section.chart.is_null() ? 0 : 1;
    }
  if (session.common.json) {
    nlohmann::ordered_json chapters = nlohmann::ordered_json::array();
    for (const ReportChapter& chapter : report.chapters) {
      nlohmann::ordered_json titles = nlohmann::ordered_json::array();
      for (const ReportSection& section : chapter.sections) titles.push_back(section.title);
      chapters.push_back({{"title", chapter.title}, {"sections", titles}});
    }
    print_json(session, "report",
               {{"written", o.output}, {"bytes", page.size()}, {"charts", charts}, {"chapters", chapters}});
    return ExitCode::ok;
  }
  session.terminal.out << fmt::format(
      "written: {} ({} sections, {} charts, {:.0f} kB; opens in any browser, offline)\n", o.output, sections,
      charts, static_cast<double>(page.size()) / 1e3);
  return ExitCode::ok;
}

}  // namespace

Verb report_verb() {
  return {
      .name = "report",
      .summary = "make one HTML report with charts of plans, runs and answers",
      .description =
          "Makes one HTML file of plan files, profiles, folders of runs and what other verbs printed with "
          "--json, recognized "
          "by their content. It needs no network. A plan file is simulated anew for what it does not hold: "
          "memory and time "
          "by stage, the timeline of a step, layouts one change away. What is known of the same layout "
          "stands together.",
      .examples =
          {{"a plan as a page",
            "sextant plan --model llama-2-13b --cluster 8x8xa100-80gb --seq-len 4096 --global-batch 1024 "
            "-o best.json --json > search.json"},
           {"", "sextant report best.json -o report.html"},
           {"with the search that found it, and what 2T tokens take",
            "sextant report best.json search.json --tokens 2T -o report.html"},
           {"a run, with loss, throughput and both timelines", "sextant report saved-run -o run.html"}},
      .define = [](CLI::App& app) -> Run {
        auto o = std::make_shared<ReportOptions>();
        app.add_option("answers", o->answers, "plan files, profiles, folders of runs, answers of --json")
            ->type_name("ANSWER");
        add_text(app, {.flag = "-o,--output", .metavar = "FILE", .text = "the page, an HTML file"},
                 o->output);
        add_text(app,
                 {.flag = "--title", .metavar = "TEXT", .text = "of the page; else that of the first answer"},
                 o->title);
        add_text(app,
                 {.flag = "--tokens",
                  .metavar = "N",
                  .text = "of plan files: how long so many tokens take and what they cost: 2e12, 15T, 300B"},
                 o->tokens);
        add_text(app,
                 {.flag = "--calibration",
                  .metavar = "FILE",
                  .text = "of plan files: constants from 'sextant calibrate -o'"},
                 o->calibration);
        add_text(app,
                 {.flag = "--profile",
                  .metavar = "FILE",
                  .text = "of plan files and runs: measured times from 'sextant profile -o'"},
                 o->profile);
        return [o](Session& session) { return run(session, *o); };
      }};
}

}  // namespace sextant
