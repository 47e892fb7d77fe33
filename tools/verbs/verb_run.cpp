// `sextant run`: trains under a plan, here, and says how the prediction held.
#include <csignal>
#include <filesystem>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "core/timeline/timeline_file.hpp"
#include "core/timeline/trace.hpp"
#include "profiler/kernel_trace.hpp"
#include "profiler/traced_steps.hpp"
#include "tools/adaptation/adaptive_run.hpp"
#include "tools/adaptation/decision_log.hpp"
#include "tools/adaptation/first_plan.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/machine.hpp"
#include "tools/inputs/run_checkpoints.hpp"
#include "tools/inputs/run_data.hpp"
#include "tools/inputs/run_options.hpp"
#include "tools/inputs/running.hpp"
#include "tools/inputs/version.hpp"
#include "tools/inputs/weights.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/verbs/profile_machine.hpp"
#include "tools/verbs/run_job.hpp"
#include "tools/verbs/run_text.hpp"
#include "tools/verbs/step_log.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

// Looks for the plan to train under, and makes it what options name; nothing where they name a file.
std::optional<PlanFile> choose_plan(Session& session, const RunFolder& folder,
                                    const QuestionOptions& question, RunVerbOptions& o, RunStart& start) {
  if (o.running.plan.empty() && o.checkpoints.resume) {
    start.own = folder.own_plan();
    if (!start.own && question.model.empty())
      throw UsageError(
          fmt::format("{} holds no run to resume, and no plan file was given to begin one", o.output));
    if (start.own) {
      o.running.plan = start.own->name;
      return start.own->plan;
    }
  }
  if (!question.model.empty()) {
    if (!o.running.plan.empty()) throw UsageError("a plan file and --model: give one of them");
    PlanFile planned = first_plan(session, question);
    start.planned = true;
    o.running.plan = "--model " + question.model;  // what messages call it
    return planned;
  }
  if (o.running.plan.empty())
    throw UsageError(
        "the plan file is missing\n  for example: sextant plan --model stories-15m --cluster laptop "
        "--stack sextant -o plan.json\n  or without one: sextant run --model stories-15m --cluster laptop");
  return std::nullopt;
}

void read_initial_weights(const RunVerbOptions& o, const Runnable& runnable, RunStart& start) {
  if (!o.init.empty() && !start.from) {
    start.initial = hugging_face_weights(o.init, runnable.file().model);
    start.adopted.init_dtype = start.initial->type ? std::string(name(*start.initial->type)) : "";
  }
  if (start.from) start.from->require_model(runnable.file().model, o.running.plan);
}

// With --record on a GPU; otherwise null.
std::unique_ptr<TracedSteps> traced_steps(const RunVerbOptions& o, const Runnable& runnable) {
  if (!o.record || !runnable.on_gpu()) return nullptr;
  if (const std::string missing = kernel_trace_missing(); !missing.empty())
    throw ConfigError(
        Problem{"--record", "", missing, "CUPTI", "without --record operations are timed by events"});
  return std::make_unique<TracedSteps>(runnable.graph().plan.world());
}

// A run that was asked to end, and is saved, has done what it should; Ctrl-C is told apart.
ExitCode code_of(const RunJob& job, const RunResult& result) {
  const bool interrupted = result.stopped && job.folder.end_reason().empty() &&
                           (job.interrupt.signal() == SIGINT || !job.folder.saves());
  return interrupted ? ExitCode::interrupted : ExitCode::ok;
}

// Of the last step, as predicted and as measured.
void write_timelines(const RunVerbOptions& o, const Runnable& runnable, const Timeline& measured) {
  if (!o.output.empty()) save_timeline(o.output + "/timeline.json", measured);
  if (o.trace.empty()) return;
  const std::string predicted =
      trace_events(runnable.graph(), runnable.predicted(), {.prefix = "predicted stage"});
  write_trace(o.trace,
              predicted + "," +
                  trace_events(runnable.graph(), measured,
                               {.prefix = "measured stage", .first_process = 1000, .memory = false}));
}

// Trains, and answers.
ExitCode train_and_answer(const RunJob& job, RunStart& start, std::unique_ptr<Runnable> runnable) {
  const RunVerbOptions& o = job.options;
  DecisionLog decisions(o.output);
  AdaptiveRun adaptive(job.adapt, o.running, o.profile, job.session.presets(), o.steps,
                       hooks_of(job, start, decisions));
  RunResult result =
      job.adapt.asked() ? adaptive.train(runnable) : train(training_of(job, start, *runnable, true));
  result.measured.device = runnable->on_gpu() ? machine_of(o.running) : inspect_machine().cpu;
  result.measured.build = version_text();
  const ExitCode code = code_of(job, result);
  if (!result.first_rank) return code;
  job.folder.sync();
  if (result.steps == 0) {
    answer_without_steps(job, *runnable, result);
    return code;
  }
  const TimelineComparison comparison = compare(runnable->graph(), runnable->predicted(), result.measured);
  write_timelines(o, *runnable, result.measured);
  if (job.session.common.json)
    answer_in_json(job, {*runnable, result, comparison}, decisions);
  else
    answer_in_text(job, {*runnable, result, comparison}, start.planned);
  return code;
}

ExitCode run(Session& session, const CLI::App& app, RunVerbOptions o, const AdaptOptions& adapt,
             const QuestionOptions& question) {
  const InterruptGuard interrupt(o.output.empty() || o.checkpoints.no_save
                                     ? "sextant run: ending; Ctrl-C again ends at once\n"
                                     : "sextant run: saving; Ctrl-C again ends without it\n");
  std::signal(SIGPIPE, SIG_IGN);  // training goes on when nobody reads its lines any more
  RunFolder folder(o.output, o.checkpoints);
  RunStart start;
  start.from = folder.checkpoint();
  start.init_given = !o.init.empty();
  start.model_given = !question.model.empty();
  if (o.checkpoints.resume)
    start.adopted = adopt_options(app, start.from ? &start.from->manifest() : nullptr, o);
  std::optional<PlanFile> plan = choose_plan(session, folder, question, o, start);
  check_output("--trace", o.trace, {o.running.plan, o.profile});
  settle(adapt, o.running);
  auto runnable = plan ? std::make_unique<Runnable>(o.running, *std::move(plan), o.profile, session.presets())
                       : std::make_unique<Runnable>(o.running, o.profile, session.presets());
  read_initial_weights(o, *runnable, start);
  folder.adopt(o.checkpoints, run_options_text(o, start.adopted.init_dtype), o.steps);
  StepLog log(session, folder, o.print_every);
  const RunData data(o.data, runnable->file(), static_cast<std::uint64_t>(o.running.seed));
  if (start.from && o.data.of_the_run) data.require_sets_of(start.from->manifest().data);
  if (start.from) data.require_tokenizer_of(start.from->manifest().data);
  folder.keep_data([&](std::int64_t) { return data.identity().dump(); });
  const auto traced = traced_steps(o, *runnable);
  const RunJob job{session, o, adapt, interrupt, folder, log, data, traced.get(), same_of_ranks(o, data)};
  return train_and_answer(job, start, std::move(runnable));
}

void add_training_options(CLI::App& app, RunVerbOptions& o) {
  add_number(app, {.flag = "--steps", .metavar = "N", .text = "optimizer steps", .min = 1, .max = 1e9},
             o.steps);
  add_number(app, {.flag = "--lr", .metavar = "X", .text = "peak learning rate", .min = 0, .max = 10},
             o.rate);
  add_number(app,
             {.flag = "--lr-final-ratio",
              .metavar = "X",
              .text = "of the peak, where the cosine ends",
              .min = 0,
              .max = 1},
             o.final_ratio);
  add_number(app,
             {.flag = "--warmup", .metavar = "N", .text = "steps of linear warm-up", .min = 0, .max = 1e9},
             o.warmup);
  add_number(app, {.flag = "--weight-decay", .metavar = "X", .text = "of all matrices", .min = 0, .max = 10},
             o.weight_decay);
  add_number(app,
             {.flag = "--clip",
              .metavar = "X",
              .text = "gradient norm beyond which gradients are scaled",
              .min = 1e-9,
              .max = 1e9},
             o.clip);
  add_number(app,
             {.flag = "--max-skipped",
              .metavar = "N",
              .text = "steps in a row with gradients that are not finite, then the run ends",
              .min = 1,
              .max = 1e9},
             o.max_skipped);
}

Run define_run(CLI::App& app) {
  auto o = std::make_shared<RunVerbOptions>();
  add_running_options(app, o->running);
  add_data_options(app, o->data);
  add_training_options(app, *o);
  add_number(app,
             {.flag = "--print-every",
              .metavar = "N",
              .text = "steps from line to line on the terminal; steps.jsonl has all",
              .min = 1,
              .max = 1e9},
             o->print_every);
  add_number(app,
             {.flag = "--deadline",
              .metavar = "S",
              .text = "an operation later than this and ten times its prediction ends the run",
              .unit = "s",
              .min = 1,
              .max = 1e6},
             o->deadline_s);
  add_text(app,
           {.flag = "--init",
            .metavar = "HF_DIR",
            .text = "start from these weights: a Hugging Face folder of safetensors"},
           o->init);
  add_profile_option(app, o->profile);
  add_text(app,
           {.flag = "-o,--output",
            .metavar = "DIR",
            .text = "folder for steps.jsonl, plan.json, timeline.json and checkpoints"},
           o->output);
  add_flag(app,
           {.flag = "--record",
            .metavar = "",
            .text = "on a GPU: operations timed by their kernels (CUPTI), not by events around them"},
           o->record);
  add_text(app,
           {.flag = "--trace",
            .metavar = "FILE",
            .text = "predicted and measured timeline for Perfetto (.json or .json.gz)"},
           o->trace);
  add_checkpoint_options(app, o->checkpoints);
  auto adapt = std::make_shared<AdaptOptions>();
  auto question = std::make_shared<QuestionOptions>();
  add_adapt_options(app, *adapt);
  add_question_options(app, *question, {});
  return [o, adapt, question, &app](Session& session) { return run(session, app, *o, *adapt, *question); };
}

}  // namespace

Verb run_verb() {
  return {
      .name = "run",
      .summary = "train under a plan, on CPU ranks or on a GPU",
      .description =
          "Executes a plan file: LLaMA training with AdamW on data sets of 'sextant data' or on synthetic "
          "tokens, every rank a thread of this "
          "process or an MPI process. Prints a line per step and, at the end, predicted against measured "
          "time. "
          "The plan must be made for the runtime: --stack sextant. SIGTERM, SIGUSR1, a terminal that goes "
          "away "
          "and Ctrl-C end it with a checkpoint, however often they come; a second Ctrl-C ends it at once.",
      .examples = {{"a small plan",
                    "sextant plan --model stories-260k --cluster laptop --stack sextant --seq-len 64 "
                    "--global-batch 8 -o tiny.json"},
                   {"three steps of it", "sextant run tiny.json --steps 3"},
                   {"saved every 2 of 4 steps",
                    "sextant run tiny.json --steps 4 --save-every 2 -o saved-run"},
                   {"two steps more", "sextant run -o saved-run --resume --steps 6"},
                   {"on text, evaluated on held-out text",
                    "sextant run tiny.json --steps 4 --data tokens --packing apart --eval-every 2 "
                    "--print-every 2"}},
      .define = define_run};
}

}  // namespace sextant
