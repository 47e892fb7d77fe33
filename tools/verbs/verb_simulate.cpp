// `sextant simulate`: one layout in detail, where the time and the memory go, and its timeline.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/words.hpp"
#include "core/plan/plan_links.hpp"
#include "core/timeline/breakdown.hpp"
#include "core/timeline/trace.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/calibration/profile_priors.hpp"
#include "planner/explain/framework_setting.hpp"
#include "planner/explain/unused_fields.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/simulate.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/execution/device_memory.hpp"
#include "runtime/execution/rank_trainer.hpp"
#include "runtime/execution/stage_view.hpp"
#include "tools/inputs/goodput_options.hpp"
#include "tools/inputs/plan_options.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/precision.hpp"
#include "tools/output/goodput_text.hpp"
#include "tools/output/time_rows.hpp"
#include "tools/output/training_time.hpp"
#include "tools/terminal/bar.hpp"
#include "tools/terminal/table.hpp"
#include "tools/verbs/simulate_events.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

using Json = nlohmann::ordered_json;

struct SimulateVerbOptions {
  QuestionOptions question;
  GoodputOptions goodput;
  std::string layout;  // the positional one
  std::string tokens, trace, output;
  EventsOptions events;
};

struct Simulated {
  Prediction prediction;
  Breakdown split;
  MemoryEstimate memory;
  double beyond_graph_s = 0;                        // stragglers and fixed host time of the step
  double host_s = 0;                                // the fixed host time alone
  Seconds jitter;                                   // what it adds to the step
  std::optional<CalibratedUncertainty> calibrated;  // under --calibration
  std::size_t ops = 0;
  // What `sextant run` allocates on the device of a rank of the fullest stage; nothing of another stack's plan, or of one
  // that the runtime cannot run.
  std::optional<Bytes> runtime;
};

// Buffers as they are placed, and on a GPU the kernels' scratch: to the byte.
Bytes allocated_by_runtime(const Job& job, const ExecutionGraph& graph, int stage) {
  if (job.cluster.device.generation != "cpu")
    return Bytes(device_memory(graph, job.stack.rules, stage, true).total());
  return Bytes(plan_arena(graph, StageView(graph, stage)).extent[static_cast<std::size_t>(Space::device)]);
}

bool runs_here(const Job& job, const ParallelPlan& plan) {
  return job.stack.name == kProfiledStack &&
         runtime_refuses(job.model, job.training, plan, job.stack, cpu_kernels()).empty();
}

Simulated simulate_plan(const Job& job, const ParallelPlan& plan, const std::string& trace) {
  Simulated s;
  const bool runs = runs_here(job, plan);  // what places buffers needs the operands of operations
  const ExecutionGraph graph = lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack,
                                     {.operands = !trace.empty() || runs});
  const Timeline timeline = simulate(graph, price(graph, job.cost), simulate_options(job, plan));
  s.prediction = predict_under(job, plan, RankBy::expected);
  s.split = breakdown(graph, timeline);
  s.memory = estimate_memory(job.model, job.training, plan, job.stack);
  if (runs) s.runtime = allocated_by_runtime(job, graph, s.memory.heaviest);
  const Seconds undisturbed = ranked_step(s.prediction, RankBy::undisturbed);
  s.beyond_graph_s = (undisturbed - s.split.step).v;
  s.jitter = s.prediction.step - undisturbed;
  s.ops = graph.ops.size();
  s.host_s = job.stack.kernels.step_overhead.v;
  if (!trace.empty()) {
    const std::array behind = {TracePart{"jitter", s.jitter.v},
                               TracePart{"stragglers", s.beyond_graph_s - s.host_s},
                               TracePart{"host", s.host_s}};
    write_trace(trace, trace_events(graph, timeline) + ",\n" + trace_step(timeline, behind, plan.pp));
  }
  return s;
}

// Rows of the stages' table: all of them, or the first, the heaviest and the last of a long pipeline.
std::vector<int> stages_shown(std::size_t n, int heaviest) {
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), 0);
  if (n <= 16) return all;
  std::vector<int> some = {0, 1, heaviest, static_cast<int>(n) - 2, static_cast<int>(n) - 1};
  std::sort(some.begin(), some.end());
  some.erase(std::unique(some.begin(), some.end()), some.end());
  return some;
}

constexpr int kBarColumns = 12;  // that a bar of all takes

void print_time(Session& session, const Simulated& s) {
  Table table({{"time", Align::left},
               {"s", Align::right},
               {"% of step", Align::right},
               {"slowest stage s", Align::right, 1},
               {"share", Align::left, 2}});
  const double step = s.prediction.step.v;
  std::size_t i = 0;
  for (const TimeRow& row : time_rows(s.split.mean, s.prediction.step, s.jitter)) {
    std::string slowest;  // of what stages have of their own
    if (i < s.split.mean.size()) {
      double most = 0;
      for (const auto& stage : s.split.stages) most = std::max(most, stage[i]);
      ++i;
      if (most < 1e-5 * step) continue;
      slowest = fmt::format("{:.4f}", most);
    }
    table.add_row({row.what, fmt::format("{:.4f}", row.seconds), fmt::format("{:.1f}", 100 * row.share),
                   slowest, bar_text(session.terminal, row.share, kBarColumns)});
  }
  table.add_row({"step", fmt::format("{:.4f}", step), "100.0", "", ""});
  table.emphasize_last_row();
  session.terminal.out << table.render(session.terminal, session.common.wide) << '\n';
}

void print_stage_memory(Session& session, const Simulated& s) {
  std::array<bool, kBufferKinds> used{};
  for (const auto& stage : s.memory.stages)
    for (std::size_t k = 0; k < used.size(); ++k) used[k] = used[k] || stage.at_peak[k] > 0;
  std::vector<Column> columns = {{"stage", Align::right}};
  for (std::size_t k = 0; k < used.size(); ++k)
    if (used[k])
      columns.push_back({words(name(static_cast<BufferKind>(k))), Align::right, static_cast<int>(k)});
  columns.push_back({"allocator reserve", Align::right, 20});
  columns.push_back({"CUDA+NCCL", Align::right, 21});
  columns.push_back({"peak GiB", Align::right});
  columns.push_back({"of limit", Align::left, 22});
  Table table(columns);
  const auto shown = stages_shown(s.memory.stages.size(), s.memory.heaviest);
  for (const int i : shown) {
    const StageMemory& stage = s.memory.stages[static_cast<std::size_t>(i)];
    std::vector<std::string> cells = {fmt::format("{}", i)};
    for (std::size_t k = 0; k < used.size(); ++k)
      if (used[k]) cells.push_back(fmt::format("{:.2f}", gib(Bytes(stage.at_peak[k]))));
    cells.push_back(fmt::format("{:.2f}", gib(stage.fragmented)));
    cells.push_back(fmt::format("{:.2f}", gib(stage.outside)));
    cells.push_back(fmt::format("{:.2f}", gib(stage.needed())));
    cells.push_back(bar_text(session.terminal, stage.needed() / s.prediction.memory_available, kBarColumns));
    table.add_row(cells);
    if (i == s.memory.heaviest) table.emphasize_last_row();
  }
  session.terminal.out << table.render(session.terminal, session.common.wide);
  if (shown.size() < s.memory.stages.size())
    session.terminal.out << fmt::format("({} of {} stages; --json has all)\n", shown.size(),
                                        s.memory.stages.size());
}

Json to_json(const ParallelPlan& plan, const Simulated& s) {
  Json stages = Json::array();
  for (std::size_t i = 0; i < s.memory.stages.size(); ++i) {
    const StageMemory& m = s.memory.stages[i];
    Json memory = Json::object();
    for (std::size_t k = 0; k < kBufferKinds; ++k)
      memory[std::string(name(static_cast<BufferKind>(k)))] = gib(Bytes(m.at_peak[k]));
    memory["allocated"] = gib(m.allocated());
    memory["needed"] = gib(m.needed());
    memory["reserved"] = gib(m.reserved());
    stages.push_back({{"stage", i}, {"time_s", time_split_json(s.split.stages[i])}, {"memory_GiB", memory}});
  }
  Json split = time_split_json(s.split.mean);
  split["jitter"] = s.jitter.v;
  Json out = {{"prediction", prediction_json(plan, s.prediction)},
              {"breakdown_s", split},
              {"stragglers_and_host_s", s.beyond_graph_s},
              {"operations", s.ops},
              {"stages", stages}};
  if (s.runtime) out["runtime_bytes"] = s.runtime->v;
  if (const auto& jitter = s.prediction.jitter) {
    out["undisturbed_step_time_s"] = jitter->undisturbed.v;
    out["p90_step_time_s"] = jitter->p90.v;
  }
  if (s.calibrated) out["known_from_calibration"] = s.calibrated->known;
  return out;
}

ExitCode run(Session& session, SimulateVerbOptions options) {
  settle(options.goodput, options.question);
  options.question.samples_jitter = true;
  take_layout(options.layout, options.question);
  if (options.question.plan.empty() && options.question.from.empty())
    throw UsageError(
        "--plan is missing\n  for example: --plan tp2.pp2.dp16.z1.mbs1, or a file of: sextant plan -o");
  auto others = files_read(options.question);
  check_output("--output", options.output, others);
  others.push_back(options.output);
  check_output("--trace", options.trace, others);
  const Planning planning(read_question(session, options.question), session.presets());
  const Question& q = planning.question();
  const Job job = planning.predicted_job();
  const ParallelPlan& plan = *q.plan;
  const auto refuse = [&](const std::string& reason) {
    print_error(session.terminal, "sextant simulate", plan_key(plan) + ": " + reason);
    return ExitCode::no_feasible_plan;
  };
  if (!options.tokens.empty()) parse_tokens(options.tokens, "--tokens");
  if (plan.world() > q.cluster.gpus())
    return refuse(fmt::format("needs {} GPUs, the cluster has {}", plan.world(), q.cluster.gpus()));
  if (const auto rejection = unlawful(job, plan)) return refuse(rejection->text);
  if (!options.events.file.empty()) return simulate_events(session, planning, options.events);

  Simulated s = simulate_plan(job, plan, options.trace);
  s.calibrated = use_covariance(session, options.question, q, plan, s.prediction);
  if (!options.output.empty()) {
    const bool ranked = q.file && q.file->prediction.jitter;
    PlanFile file = plan_file_of(session, q, plan, s.prediction, s.split.mean,
                                 ranked ? q.file->prediction.jitter->rank_by : RankBy::expected);
    file.prediction.goodput = goodput(job, plan, s.prediction.step, options.goodput.kind());
    save_plan_file(options.output, file);
  }
  const auto rejection = too_large(job, s.prediction.memory);
  const std::string setting = framework_setting(plan, q.training, q.stack);
  const std::string layout = layout_setting(plan, q.model, q.stack);
  if (session.common.json) {
    Json answer = to_json(plan, s);
    add_goodput(answer["prediction"], job, plan, s.prediction.step, options.goodput.kind());
    if (!options.tokens.empty())
      answer["training"] = training_time_json(options.tokens, q.training, q.cluster, plan, s.prediction);
    if (q.profile) answer["profile"] = profile_json(*q.profile, planning.costs());
    answer["precision"] = precision_name(q.stack, q.training);
    answer["notes"] = q.notes;
    if (!setting.empty()) answer["notes"].push_back(setting);
    if (!layout.empty()) answer["notes"].push_back(layout);
    answer["unused_fields"] = unused_fields(plan, q.model, q.stack);
    print_json(session, "simulate", answer);
  } else {
    auto& out = session.terminal.out;
    const auto& p = s.prediction;
    const int width = std::clamp(session.terminal.columns, 40, 110);
    const auto paragraph = [&](const std::string& text) {
      for (const auto& line : wrap(text, width)) out << line << '\n';
    };
    paragraph(question_text(q));
    paragraph(plan_key(plan));
    print_notes(session, q);
    if (!setting.empty()) paragraph("note: " + setting);
    if (!layout.empty()) paragraph("note: " + layout);
    paragraph(
        fmt::format("step {:.3f} s (90 %: {:.3f} to {:.3f} s), {:.0f} tokens/s/GPU, {:.1f} model "
                    "TFLOP/s/GPU, MFU {:.1f} % ({:.1f} % counting causal attention as half)",
                    p.step.v, p.step_lower.v, p.step_upper.v, p.tokens_per_s_gpu, p.model_tflops_gpu,
                    100 * p.mfu, 100 * p.mfu_causal));
    if (!options.tokens.empty())
      paragraph(training_time_text(options.tokens, q.training, q.cluster, plan, p));
    if (p.rests_on) paragraph(rests_on_text(*q.profile, *p.rests_on, &planning.costs()));
    if (p.jitter) paragraph("this step is " + jitter_text(p));
    if (s.calibrated)
      paragraph(fmt::format(
          "the calibration removed {:.0f} % of the uncertainty about the constants that decide this step{}",
          100 * s.calibrated->known,
          s.calibrated->far() ? ": it is far from the runs that were measured" : ""));
    out << '\n';
    print_time(session, s);
    print_stage_memory(session, s);
    out << '\n';
    paragraph(rejection
                  ? "does not fit: " + rejection->text
                  : fmt::format("fits: {:.1f} of {:.1f} GiB", gib(p.memory.peak), gib(p.memory_available)));
    paragraph("precision: " + precision_text(q.stack, q.training));
    if (const auto text = host_memory_text(p.memory, q.cluster.node); !text.empty()) paragraph(text);
    if (s.runtime)
      paragraph(fmt::format("sextant run allocates {} bytes of it",
                            with_thousands(static_cast<std::uint64_t>(s.runtime->v))));
    for (const std::string& field : unused_fields(plan, q.model, q.stack))
      paragraph("note: changes nothing here: " + field);
    if (const auto text = overflow_text(p.chance_of_overflow); !rejection && !text.empty()) paragraph(text);
    if (const auto text = goodput_text(job, plan, p.step, options.goodput.kind()); !text.empty())
      paragraph(text);
    if (!options.output.empty()) out << "written: " << options.output << '\n';
    if (!options.trace.empty())
      paragraph(fmt::format(
          "the trace is as long as the step: its operations end at {:.4f} s; {}{:.4f} s of "
          "stragglers and {:.4f} s of host "
          "time follow as slices of the process \"step\"",
          s.split.step.v, s.jitter > Seconds(0) ? fmt::format("{:.4f} s of jitter, ", s.jitter.v) : "",
          s.beyond_graph_s - s.host_s, s.host_s));
    if (!options.trace.empty())
      out << fmt::format(
          "written: {}\nnext: open it in Perfetto (ui.perfetto.dev; it stays in the browser)\n",
          options.trace);
    else
      out << "next: --trace step.json.gz writes the timeline for Perfetto\n";
  }
  return rejection ? ExitCode::no_feasible_plan : ExitCode::ok;
}

}  // namespace

Verb simulate_verb() {
  return {
      .name = "simulate",
      .summary = "simulate one layout: time, memory, timeline",
      .description =
          "Predicts one layout in detail: where the step's time goes (mean over stages; the parts sum to the "
          "step), what each stage holds at its peak, and, with --trace, when every operation runs. Exit "
          "code 4 when the stack cannot run the layout or it does not fit, 2 when its key contradicts "
          "itself, the model or the cluster.",
      .examples =
          {{"one layout, with its timeline",
            "sextant simulate --model llama-2-13b --cluster 8x8xa100-80gb --plan tp2.pp2.dp16.z1.mbs1.sel "
            "--trace step.json.gz"},
           {"the plan of a search", "sextant simulate plan.json"},
           {"the same plan on another network",
            "sextant simulate --plan plan.json --set "
            "fabric.bandwidth_GBps=50 --json"},
           {"with the measured times of its operations",
            "sextant simulate --plan small.json --profile works.json"}},
      .define = [](CLI::App& app) -> Run {
        auto options = std::make_shared<SimulateVerbOptions>();
        add_text(app,
                 {.flag = "layout",
                  .metavar = "KEY|FILE",
                  .text = "the layout, or a plan file; the same as --plan"},
                 options->layout);
        add_question_options(app, options->question,
                             {.plan = true, .limits = false, .profile = true, .from = true});
        add_goodput_options(app, options->goodput);
        add_events_options(app, options->events);
        add_text(app,
                 {.flag = "--tokens",
                  .metavar = "N",
                  .text = "how long so many tokens take and what they cost: 2e12, 15T, 300B"},
                 options->tokens);
        add_text(app,
                 {.flag = "--trace",
                  .metavar = "FILE",
                  .text = "write the timeline as Chrome trace JSON (.gz: packed)"},
                 options->trace);
        add_text(app, {.flag = "-o,--output", .metavar = "FILE", .text = "write a plan file"},
                 options->output);
        return [options](Session& session) { return run(session, *options); };
      }};
}

}  // namespace sextant
