// `sextant simulate`: one layout in detail, where the time and the memory go, and its timeline.
#include <array>
#include <memory>
#include <optional>
#include <ostream>

#include <fmt/format.h>

#include "core/plan/plan_links.hpp"
#include "core/timeline/breakdown.hpp"
#include "core/timeline/trace.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "planner/calibration/calibration_uncertainty.hpp"
#include "planner/calibration/profile_priors.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/robust.hpp"
#include "planner/simulation/simulate.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/execution/device_memory.hpp"
#include "runtime/execution/stage_view.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"
#include "tools/inputs/goodput_options.hpp"
#include "tools/inputs/plan_options.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/output/training_time.hpp"
#include "tools/verbs/simulate_answer.hpp"
#include "tools/verbs/simulate_events.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {

namespace {

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

SimulatedLayout simulate_plan(const Job& job, const ParallelPlan& plan, const std::string& trace) {
  SimulatedLayout s;
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

void write_simulated(const Session& session, const SimulateVerbOptions& options, const Planning& planning,
                     const Job& job, const SimulatedLayout& s) {
  const Question& q = planning.question();
  const bool ranked = q.file && q.file->prediction.jitter;
  PlanFile file = plan_file_of(session, q, *q.plan, s.prediction, s.split.mean,
                               ranked ? q.file->prediction.jitter->rank_by : RankBy::expected);
  file.prediction.goodput = goodput(job, *q.plan, s.prediction.step, options.goodput.kind());
  save_plan_file(options.output, file);
}

void check_simulate(const SimulateVerbOptions& options) {
  if (options.question.plan.empty() && options.question.from.empty())
    throw UsageError(
        "--plan is missing\n  for example: --plan tp2.pp2.dp16.z1.mbs1, or a file of: sextant plan -o");
  auto others = files_read(options.question);
  check_output("--output", options.output, others);
  others.push_back(options.output);
  check_output("--trace", options.trace, others);
}

ExitCode run(Session& session, SimulateVerbOptions options) {
  settle(options.goodput, options.question);
  options.question.samples_jitter = true;
  take_layout(options.layout, options.question);
  check_simulate(options);
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

  SimulatedLayout s = simulate_plan(job, plan, options.trace);
  s.calibrated = use_covariance(session, options.question, q, plan, s.prediction);
  if (!options.output.empty()) write_simulated(session, options, planning, job, s);
  const SimulateAnswer of{session, options, planning, job, s, too_large(job, s.prediction.memory)};
  print_simulated(of);
  return of.rejection ? ExitCode::no_feasible_plan : ExitCode::ok;
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
            "sextant simulate --plan small.json --profile profile.json"}},
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
