#include "tools/verbs/compare_trace.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/cluster/device_words.hpp"
#include "planner/simulation/predict.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/output/trace_text.hpp"
#include "tools/report/planned_step.hpp"
#include "tools/terminal/progress.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

namespace fs = std::filesystem;

// A trace of another machine or of another job explains nothing of this plan.
void require_job_of_plan(const TracedJob& job, const std::string& file, const Question& q, bool any_device) {
  std::vector<Problem> problems;
  const int world = q.file->plan.world(), last = job.ranks.back().trace.rank;
  if (job.world > 0 && job.world != world)
    problems.push_back(
        {file, "distributedInfo.world_size", fmt::format("{} ranks", job.world),
         fmt::format("{}, as the plan has", world),
         "compare with a plan of as many ranks: sextant simulate --from FILE -o plan.json reads "
         "what was run"});
  else if (last >= world)
    problems.push_back({file, "rank", fmt::format("{}", last),
                        fmt::format("below the {} ranks of the plan", world),
                        "compare with a plan of as many"});
  if (!any_device && !job.device.empty() && !names_device(job.device, q.cluster.device))
    problems.push_back({file, "device", job.device,
                        fmt::format("{}, as the plan states", q.cluster.device.name),
                        "compare with a plan for the device that it was measured on; --allow-other-device "
                        "takes it all the same"});
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

// Of what shape the model is no trace says; how many attention cores a step runs, it shows.
void remark_on_model(const ParallelPlan& plan, const StepAccount& predicted, const StepAccount& measured,
                     std::vector<std::string>& remarks) {
  const double was = predicted.attention_forward, is = measured.attention_forward;
  if (plan.cp > 1 || is == 0 || was == 0 || std::abs(is - was) < 0.02 * was) return;
  remarks.push_back(fmt::format(
      "a step of a rank runs {:.4g} attention cores forward, and {:.4g} were predicted: is this the plan's "
      "model, with its micro-batches and recomputation?",
      is, was));
}

void remark_on_groups(const TracedAccount& measured, std::vector<std::string>& remarks) {
  double unknown = 0;
  for (const auto& [key, c] : measured.mean.collectives)
    if (key.first == GroupAxis::unknown) unknown += c.seconds;
  if (unknown > 0.01 * measured.mean.step_s)
    remarks.push_back(fmt::format(
        "of {:.2f} ms of collectives a step the trace does not show over which axis they run (the PyTorch "
        "profiler records process groups since 2.3, Nsight Systems does not)",
        1e3 * unknown));
}

void remark_on_kernels(const TracedJob& job, const TracedAccount& measured,
                       std::vector<std::string>& remarks) {
  const double other = measured.mean.parts[static_cast<std::size_t>(StepPart::other_kernels)];
  if (other < 0.01 * measured.mean.step_s) return;
  std::map<std::string, double> by_name;
  for (const RankSteps& rank : job.ranks)
    for (const DeviceActivity& a : rank.trace.activities)
      if (a.kind == KernelClass::other)
        by_name[rank.trace.names[a.name]] += static_cast<double>(a.end_ns - a.begin_ns);
  std::vector<std::pair<double, std::string>> longest;
  for (const auto& [name, ns] : by_name) longest.emplace_back(ns, name.substr(0, 60));
  std::ranges::sort(longest, std::greater{});
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, longest.size()); ++i)
    names.push_back(longest[i].second);
  remarks.push_back(
      fmt::format("{:.1f} % of the step are kernels that no rule of kernel_names.json knows: {}",
                  100 * other / measured.mean.step_s, fmt::join(names, "; ")));
}

void predict_into(ComparedTrace& out, Session& session, const KernelNames& rules,
                  const TraceOptionsOfCompare& options) {
  QuestionOptions asked;
  asked.plan = options.plan;
  asked.profile = options.profile;
  const Planning planning(read_question(session, asked), session.presets());
  const Question& q = planning.question();
  if (!q.file)
    throw ConfigError(Problem{options.plan, "", "no plan file", "what 'sextant plan -o' wrote", ""});
  require_job_of_plan(out.job, out.path, q, options.any_device);
  const ParallelPlan& plan = q.file->plan;
  out.ranks = plan.world();
  out.measured = traced_account(out.job, GroupAxes(rules, RankDegrees(plan)));
  const Job job = planning.predicted_job();
  const PlannedStep step = planned_step(job, plan);
  const double beside = step.prediction.step.v - step.split.step.v, host = job.stack.kernels.step_overhead.v;
  std::vector<int> stages;
  const RankGrid grid{RankDegrees(plan)};
  for (const RankAccount& rank : out.measured.ranks) stages.push_back(grid.coord(rank.rank).pp);
  out.predicted = predicted_account(step.graph, step.timeline, step.split, planning.costs().analytic(),
                                    stages, {.stragglers_s = beside - host, .host_s = host});
  if (const double stated = q.file->prediction.step_time_s.value;
      stated > 0 && std::abs(stated / out.predicted->step_s - 1) > 0.01)
    out.job.remarks.push_back(fmt::format(
        "{} states a step of {:.2f} ms, predicted when it was written; today, without its calibration, it is "
        "{:.2f} ms",
        options.plan, 1e3 * stated, 1e3 * out.predicted->step_s));
  remark_on_model(plan, *out.predicted, out.measured.mean, out.job.remarks);
}

}  // namespace

bool is_trace(const fs::path& path) {
  std::error_code error;
  if (path.extension() == ".nsys-rep" || path.extension() == ".qdrep")
    throw ConfigError(Problem{path.string(), "", "a report of Nsight Systems", "what it exports",
                              "nsys export -t sqlite " + path.string()});
  if (!fs::is_directory(path, error)) {
    // By their names these are meant as traces, damaged ones too.
    const std::string name = path.filename().string();
    const bool named = name.ends_with(".gz") || name.ends_with(".sqlite") || name.ends_with(".pt.trace.json");
    return (named && fs::exists(path, error)) || trace_format_of(path).has_value();
  }
  return !fs::exists(path / "timeline.json", error) && !fs::exists(path / "plan.json", error) &&
         !trace_files_in(path).empty();
}

std::vector<std::vector<fs::path>> traced_jobs(const std::vector<std::string>& paths) {
  std::vector<std::vector<fs::path>> jobs;
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    if (fs::is_directory(path))
      jobs.push_back({path});
    else
      files.emplace_back(path);
  }
  if (!files.empty()) jobs.insert(jobs.begin(), std::move(files));
  return jobs;
}

ComparedTrace compare_trace(Session& session, const std::vector<fs::path>& given,
                            const TraceOptionsOfCompare& options) {
  ComparedTrace out;
  out.path = given.front().string();
  if (given.size() > 1) out.path += fmt::format(" and {} more", given.size() - 1);
  const std::vector<fs::path> files = fs::is_directory(given.front()) ? trace_files_in(given.front()) : given;
  const KernelNames rules(session.presets());
  {
    Progress progress(session.terminal, "reading traces", 100, "%");
    out.job = read_traces(files, rules,
                          [&](double share, const std::string& file) { progress.update(100 * share, file); });
  }
  out.ranks = out.job.world;
  if (options.plan.empty())
    out.measured = traced_account(out.job, GroupAxes(rules, std::nullopt));
  else
    predict_into(out, session, rules, options);
  remark_on_groups(out.measured, out.job.remarks);
  remark_on_kernels(out.job, out.measured, out.job.remarks);
  const bool launches =
      std::ranges::all_of(out.job.ranks, [](const RankSteps& r) { return r.trace.has_launches; });
  if (!launches)
    out.job.remarks.push_back(
        "launches were not recorded: time in which the host was late is counted as bubble");
  return out;
}

nlohmann::ordered_json compared_trace_json(const ComparedTrace& trace) {
  nlohmann::ordered_json out = {{"run", trace.path}, {"ranks", trace.ranks}};
  out.update(traced_json(trace.job, trace.measured, trace.predicted));
  return out;
}

std::string measured_events(const ComparedTrace& trace, int first_process) {
  std::string out;
  const auto add = [&](const Json& event) {
    out += (out.empty() ? "" : ",\n") + event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::set<int> shown;
  for (const RankSteps& rank : trace.job.ranks) {
    if (!shown.insert(rank.trace.rank).second) continue;
    const int process = first_process + rank.trace.rank;
    add({{"ph", "M"},
         {"pid", process},
         {"name", "process_name"},
         {"args", {{"name", fmt::format("measured rank {}", rank.trace.rank)}}}});
    const StepWindow& step = rank.steps.front();
    for (const DeviceActivity& a : rank.trace.activities) {
      if (a.begin_ns < step.begin_ns || a.begin_ns >= step.end_ns) continue;
      add({{"ph", "X"},
           {"pid", process},
           {"tid", a.stream},
           {"ts", 1e-3 * static_cast<double>(a.begin_ns - step.begin_ns)},
           {"dur", 1e-3 * static_cast<double>(a.end_ns - a.begin_ns)},
           {"name", rank.trace.names[a.name].substr(0, 120)},
           {"cat", name(a.kind)}});
    }
  }
  return out;
}

}  // namespace sextant
