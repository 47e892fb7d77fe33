// `sextant compare`: predicted against measured, operation by operation, for runs of a plan; part by part for traces of other
// frameworks.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/timeline/timeline_file.hpp"
#include "core/timeline/trace.hpp"
#include "tools/inputs/file_kind.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/running.hpp"
#include "tools/output/comparison_text.hpp"
#include "tools/output/trace_text.hpp"
#include "tools/terminal/table.hpp"
#include "tools/verbs/compare_trace.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

struct CompareOptions {
  std::vector<std::string> paths;  // plan.json RUN...; RUN is a folder of a run, or a trace
  std::string profile, trace;
  bool scale = false, other_device = false;
  double max_error = 0;  // percent; 0: not checked
};

struct ComparedRun {
  std::string path;
  std::unique_ptr<Runnable> runnable;
  Timeline measured;
  TimelineComparison comparison;
};

ComparedRun compared_run(const std::string& path, const std::string& plan, const CompareOptions& o,
                         const std::filesystem::path& presets) {
  const std::filesystem::path folder = path;
  const bool is_folder = std::filesystem::is_directory(folder);
  if (plan.empty() && !is_folder)
    throw ConfigError(Problem{path, "", "no folder", "a folder of: sextant run -o",
                              "with --scale every argument is a run, with a plan of its own in it"});
  RunningOptions running;
  running.plan = plan.empty() ? (folder / "plan.json").string() : plan;
  ComparedRun run{path, std::make_unique<Runnable>(running, o.profile, presets), {}, {}};
  const ExecutionGraph& graph = run.runnable->graph();
  if (is_folder && !std::filesystem::exists(folder / "timeline.json"))
    throw ConfigError(Problem{path, "", "a folder without timeline.json", "a folder of: sextant run -o",
                              "was the run ended before its first step?"});
  run.measured =
      load_timeline(is_folder ? folder / "timeline.json" : folder, graph_hash(graph), graph.ops.size());
  run.comparison = compare(graph, run.runnable->predicted(), run.measured);
  return run;
}

// A file that is plainly none of a run, before anything is asked of the plan.
void refuse_no_run(const std::string& path) {
  if (const auto kind = kind_of_file(path))
    throw ConfigError(Problem{path, "", kind->what,
                              "a run: a folder of sextant run -o, or a trace of the PyTorch profiler or of "
                              "Nsight Systems",
                              kind->taken_by});
}

// A curve is of one model and one kind of step; ranks ascend, and what the first needs is the unit.
void make_curve(std::vector<ComparedRun>& runs) {
  const auto file = [](const ComparedRun& r) -> const PlanFile& { return r.runnable->file(); };
  for (const ComparedRun& r : runs) {
    const PlanFile &one = file(runs.front()), &other = file(r);
    const char* differs = one.model != other.model                         ? "model"
                          : one.training.seq_len != other.training.seq_len ? "sequence length"
                          : one.training.compute != other.training.compute ? "precision"
                                                                           : nullptr;
    if (differs)
      throw ConfigError(Problem{
          r.path, differs, fmt::format("another one than that of {}", runs.front().path),
          "the same in all runs of a scaling curve", "without --scale a plan and its runs are compared"});
  }
  std::ranges::stable_sort(runs, {}, [&](const ComparedRun& r) { return file(r).plan.world(); });
}

void print_scaling(Session& session, const std::vector<ComparedRun>& runs) {
  Table table({{"ranks", Align::right},
               {"plan", Align::left, 2},
               {"predicted s", Align::right},
               {"measured s", Align::right},
               {"ratio", Align::right},
               {"predicted tokens/s", Align::right, 1},
               {"measured tokens/s", Align::right},
               {"speed-up", Align::right}});
  const auto rate = [](const ComparedRun& run) {
    const TrainingSpec& t = run.runnable->file().training;
    return static_cast<double>(t.global_batch) * t.seq_len / run.comparison.measured.step.v;
  };
  for (const ComparedRun& run : runs) {
    const PlanFile& f = run.runnable->file();
    const double tokens = static_cast<double>(f.training.global_batch) * f.training.seq_len;
    const double p = run.comparison.predicted.step.v, m = run.comparison.measured.step.v;
    table.add_row({fmt::format("{}", f.plan.world()), plan_key(f.plan), fmt::format("{:.4f}", p),
                   fmt::format("{:.4f}", m), fmt::format("{:.2f}", m / p), fmt::format("{:.0f}", tokens / p),
                   fmt::format("{:.0f}", tokens / m), fmt::format("{:.2f}", rate(run) / rate(runs.front()))});
  }
  session.terminal.out << table.render(session.terminal, session.common.wide);
  const auto batch = [](const ComparedRun& r) { return r.runnable->file().training.global_batch; };
  if (std::ranges::any_of(runs, [&](const ComparedRun& r) { return batch(r) != batch(runs.front()); }))
    session.terminal.out << "the global batch is not the same in all runs: speed-ups are of tokens/s\n";
}

ExitCode judged(Session& session, double worst, double max_error) {
  if (max_error <= 0 || worst <= max_error) return ExitCode::ok;
  session.terminal.err << fmt::format("step off by {:.1f} %, tolerated {:g} %\n", worst, max_error);
  return ExitCode::outside_tolerance;
}

// Traces after a plan, or alone: then nothing is predicted.
ExitCode run_traces(Session& session, const CompareOptions& o, const std::vector<std::string>& traces) {
  const bool planned = traces.size() < o.paths.size();
  if (o.scale)
    throw UsageError("--scale compares folders of: sextant run -o; traces are compared with one plan");
  if (!planned && (o.max_error > 0 || !o.profile.empty()))
    throw UsageError("--max-error and --profile need a plan before the traces");
  std::vector<ComparedTrace> all;
  for (const auto& given : traced_jobs(traces))
    all.push_back(compare_trace(
        session, given,
        {.plan = planned ? o.paths.front() : "", .profile = o.profile, .any_device = o.other_device}));
  double worst = 0;
  Json runs = Json::array();
  std::string events;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const ComparedTrace& trace = all[i];
    if (trace.predicted)
      worst = std::max(worst, 100 * std::abs(trace.measured.mean.step_s / trace.predicted->step_s - 1));
    if (session.common.json) {
      runs.push_back(compared_trace_json(trace));
    } else {
      session.terminal.out << (i == 0 ? "" : "\n") << trace.path << ":\n";
      print_traced(session, trace.job, trace.measured, trace.predicted);
    }
    if (!o.trace.empty())
      events += (events.empty() ? "" : ",\n") + measured_events(trace, static_cast<int>(100000 * i));
  }
  if (session.common.json) print_json(session, "compare", {{"runs", runs}});
  if (!o.trace.empty()) {
    write_trace(o.trace, events);
    if (!session.common.json) session.terminal.out << "\nwritten: " << o.trace << '\n';
  }
  return judged(session, worst, o.max_error);
}

// All timelines one above the other; under one plan what was predicted stands there once.
std::string compared_events(const std::vector<ComparedRun>& runs, bool scale) {
  std::string events;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ExecutionGraph& graph = runs[i].runnable->graph();
    const int first = static_cast<int>(2000 * i);
    if (i == 0 || scale)
      events += (events.empty() ? "" : ",") +
                trace_events(graph, runs[i].runnable->predicted(),
                             {.prefix = "predicted stage", .first_process = first, .memory = i == 0});
    events += "," + trace_events(graph, runs[i].measured,
                                 {.prefix = "measured " + runs[i].path + " stage",
                                  .first_process = first + 1000,
                                  .memory = false});
  }
  return events;
}

Json compared_json(const ComparedRun& r) {
  Json one = {{"run", r.path}, {"ranks", r.runnable->file().plan.world()}};
  if (const auto& shares = r.runnable->predicted_from()) one["predicted_from"] = shares_json(*shares);
  one.update(comparison_json(r.comparison));
  return one;
}

void print_compared(Session& session, const ComparedRun& r) {
  session.terminal.out << r.path << ":\n";
  if (const auto& profile = r.runnable->profile())
    session.terminal.out << wrapped_answer(
        session.terminal, "the step was " + predicted_from_text(*profile, *r.runnable->predicted_from()));
  session.terminal.out << '\n';
  print_comparison(session, r.comparison);
}

// Runs of one plan, or with --scale of a plan each.
ExitCode run_folders(Session& session, const CompareOptions& o) {
  std::vector<ComparedRun> runs;
  for (std::size_t i = o.scale ? 0 : 1; i < o.paths.size(); ++i) {
    runs.push_back(compared_run(o.paths[i], o.scale ? "" : o.paths[0], o, session.presets()));
    const Runnable& runnable = *runs.back().runnable;
    if (o.scale || i == 1) tell_former(session, runnable.file().former);
    if (i == 1 && runnable.profile()) tell_former(session, runnable.profile()->table.former);
  }
  if (o.scale) make_curve(runs);
  if (!o.trace.empty()) write_trace(o.trace, compared_events(runs, o.scale));
  double worst = 0;
  for (const ComparedRun& r : runs) worst = std::max(worst, 100 * std::abs(r.comparison.step_ratio() - 1));
  if (session.common.json) {
    Json all = Json::array();
    for (const ComparedRun& r : runs) all.push_back(compared_json(r));
    print_json(session, "compare", {{"runs", all}});
  } else if (o.scale) {
    print_scaling(session, runs);
  } else {
    for (const ComparedRun& r : runs) {
      if (&r != &runs.front()) session.terminal.out << '\n';
      print_compared(session, r);
    }
  }
  if (!session.common.json && !o.trace.empty()) session.terminal.out << "\nwritten: " << o.trace << '\n';
  return judged(session, worst, o.max_error);
}

ExitCode run(Session& session, const CompareOptions& o) {
  const auto first_trace = std::ranges::find_if(o.paths, is_trace);
  if (first_trace != o.paths.end()) {
    const bool alone = first_trace == o.paths.begin();
    const std::vector<std::string> traces(o.paths.begin() + (alone ? 0 : 1), o.paths.end());
    const auto other = std::ranges::find_if_not(traces, is_trace);
    if (other != traces.end())
      throw ConfigError(Problem{*other, "", "no trace", "traces alone, or runs of sextant alone",
                                "compare them one after the other"});
    check_output("--trace", o.trace, o.paths);
    return run_traces(session, o, traces);
  }
  if (o.paths.size() < (o.scale ? 1u : 2u))
    throw UsageError(
        "a plan file and a run are needed\n  for example: sextant compare plan.json RUN, where RUN is a "
        "folder of: sextant run -o, or a trace of the PyTorch profiler or Nsight Systems");
  check_output("--trace", o.trace, o.paths);
  for (std::size_t i = 1; i < o.paths.size(); ++i) refuse_no_run(o.paths[i]);
  return run_folders(session, o);
}

}  // namespace

Verb compare_verb() {
  return {
      .name = "compare",
      .summary = "predicted against measured time of a run, operation by operation",
      .description =
          "Joins the predicted timeline of a plan with those that sextant run measured, by operation, "
          "and reports "
          "which part of the step and which operations explain the difference. With --scale all "
          "arguments are "
          "runs, each with a plan of its own. Traces of other frameworks, as the PyTorch profiler "
          "(*.pt.trace.json, .json.gz, one per rank, or a folder of them) and Nsight Systems (nsys export "
          "-t sqlite) write them, are compared part by part: GEMM, attention, exposed communication by "
          "axis, bubble, host-bound gaps. Without a plan the measured parts are printed.",
      .examples = {{"a run to compare with",
                    "sextant plan --model stories-260k --cluster laptop --stack sextant "
                    "--seq-len 64 --global-batch 8 -o tiny.json"},
                   {"", "sextant run tiny.json --steps 3 -o tiny-run"},
                   {"what explains the difference", "sextant compare tiny.json tiny-run"}},
      .define = [](CLI::App& app) -> Run {
        auto o = std::make_shared<CompareOptions>();
        app.add_option("paths", o->paths, "the plan file, then folders of: sextant run -o, or traces")
            ->type_name("PATH");
        add_flag(app,
                 {.flag = "--scale", .metavar = "", .text = "a scaling curve over runs of several plans"},
                 o->scale);
        add_profile_option(app, o->profile);
        add_flag(app,
                 {.flag = "--allow-other-device",
                  .metavar = "",
                  .text = "of traces: take those of another device than the plan's"},
                 o->other_device);
        add_text(app,
                 {.flag = "--trace", .metavar = "FILE", .text = "all timelines in one file for Perfetto"},
                 o->trace);
        add_number(app,
                   {.flag = "--max-error",
                    .metavar = "P",
                    .text = "exit code 6 when a step is off by more; 0 = never",
                    .unit = "%",
                    .min = 0,
                    .max = 1e6},
                   o->max_error);
        return [o](Session& session) { return run(session, *o); };
      }};
}

}  // namespace sextant
