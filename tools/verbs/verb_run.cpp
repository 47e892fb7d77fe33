// `sextant run`: trains under a plan, here, and says how the prediction held.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <ostream>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/timeline/timeline_file.hpp"
#include "core/timeline/trace.hpp"
#include "profiler/kernel_trace.hpp"
#include "profiler/traced_steps.hpp"
#include "runtime/weights/hugging_face_export.hpp"
#include "tools/adaptation/adaptive_run.hpp"
#include "tools/adaptation/decision_log.hpp"
#include "tools/adaptation/first_plan.hpp"
#include "tools/inputs/inputs.hpp"
#include "tools/inputs/machine.hpp"
#include "tools/inputs/planning.hpp"
#include "tools/inputs/run_checkpoints.hpp"
#include "tools/inputs/run_data.hpp"
#include "tools/inputs/run_options.hpp"
#include "tools/inputs/running.hpp"
#include "tools/inputs/version.hpp"
#include "tools/inputs/weights.hpp"
#include "tools/output/comparison_text.hpp"
#include "tools/terminal/interrupt.hpp"
#include "tools/verbs/profile_machine.hpp"
#include "tools/verbs/step_log.hpp"
#include "tools/verbs/verbs.hpp"

namespace sextant {
namespace {

using Json = nlohmann::ordered_json;

void warn(const Terminal& terminal, const std::string& what) {
  terminal.err << wrapped_message(terminal, "sextant run: " + what) << std::flush;
}

// A rank that never comes back cannot be joined: after the report, the process ends all the same.
void end_soon(const Terminal& terminal, const std::string& report) {
  warn(terminal, report);
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(static_cast<int>(ExitCode::run_failed));
  }).detach();
}

std::string heading(const Runnable& runnable) {
  const PlanFile& f = runnable.file();
  const std::size_t works = runnable.works_needed();
  return fmt::format("{} on {} {} rank{} under {}: {} operations a step; {}", f.model.name, f.plan.world(),
                     runnable.on_gpu() ? "GPU" : "CPU", f.plan.world() == 1 ? "" : "s", plan_key(f.plan),
                     runnable.graph().ops.size(),
                     !runnable.profile()
                         ? "predicted from the cluster file alone"
                         : fmt::format("{} of {} kinds of work predicted from {}{}; the expected step: {}",
                                       runnable.works_measured(), works, runnable.profile()->file,
                                       runnable.works_measured() > 0 ? "" : ", a profile of other plans",
                                       shares_text(*runnable.rests_on())));
}

ExitCode run(Session& session, const CLI::App& app, RunVerbOptions o, const AdaptOptions& adapt,
             const QuestionOptions& question) {
  const InterruptGuard interrupt(o.output.empty() || o.checkpoints.no_save
                                     ? "sextant run: ending; Ctrl-C again ends at once\n"
                                     : "sextant run: saving; Ctrl-C again ends without it\n");
  std::signal(SIGPIPE, SIG_IGN);  // training goes on when nobody reads its lines any more
  RunFolder folder(o.output, o.checkpoints);
  const bool resume = o.checkpoints.resume;
  const Checkpoint* const from = folder.checkpoint();
  const bool new_init = !o.init.empty();
  AdoptedOptions adopted;
  if (resume) adopted = adopt_options(app, from ? &from->manifest() : nullptr, o);
  std::optional<RunFolder::OwnPlan> own;
  if (o.running.plan.empty() && resume) {
    own = folder.own_plan();
    if (!own && question.model.empty())
      throw UsageError(
          fmt::format("{} holds no run to go on with, and no plan file was given to begin one", o.output));
    if (own) o.running.plan = own->name;
  }
  std::optional<PlanFile> planned;
  if (!question.model.empty() && !own) {
    if (!o.running.plan.empty()) throw UsageError("a plan file and --model: give one of them");
    planned = first_plan(session, question);
    o.running.plan = "--model " + question.model;  // what messages call it
  }
  if (o.running.plan.empty())
    throw UsageError(
        "the plan file is missing\n  for example: sextant plan --model stories-15m --cluster laptop "
        "--stack sextant -o plan.json\n  or without one: sextant run --model stories-15m --cluster laptop");
  check_output("--trace", o.trace, {o.running.plan, o.profile});
  settle(adapt, o.running);
  auto runnable = own || planned ? std::make_unique<Runnable>(o.running, own ? own->plan : *planned,
                                                              o.profile, session.presets())
                                 : std::make_unique<Runnable>(o.running, o.profile, session.presets());
  const bool initialised = !o.init.empty() && !from;
  InitialWeights initial;
  if (initialised) {
    initial = hugging_face_weights(o.init, runnable->file().model);
    adopted.init_dtype = initial.type ? std::string(name(*initial.type)) : "";
  }
  if (from) from->require_model(runnable->file().model, o.running.plan);
  folder.adopt(o.checkpoints, run_options_text(o, adopted.init_dtype), o.steps);
  StepLog log(session, folder, o.print_every);
  const RunData data(o.data, runnable->file(), static_cast<std::uint64_t>(o.running.seed));
  if (from && o.data.of_the_run) data.require_sets_of(from->manifest().data);
  if (from) data.require_tokenizer_of(from->manifest().data);
  const std::string unused = unused_fields(o);
  auto& out = session.terminal.out;
  folder.keep_data([&](std::int64_t) { return data.identity().dump(); });
  std::unique_ptr<TracedSteps> traced;
  if (o.record && runnable->on_gpu()) {
    if (const std::string missing = kernel_trace_missing(); !missing.empty())
      throw ConfigError(
          Problem{"--record", "", missing, "CUPTI", "without --record operations are timed by events"});
    traced = std::make_unique<TracedSteps>(runnable->graph().plan.world());
  }
  const std::string job_text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", o.running.products, o.steps, o.rate,
                  o.final_ratio, o.warmup, o.weight_decay, o.clip, o.running.seed, o.init, data.tokens(),
                  o.checkpoints.save_every, o.data.eval_every, o.data.eval_batches);
  // What ends a run under any layout, from when its ranks begin to look for each other.
  const auto watched = [&](const Runnable& layout) {
    TrainingRun training = layout.training();
    training.deadline_floor = Seconds(o.deadline_s);
    training.on_late = [&](const std::string& report) { end_soon(session.terminal, report); };
    training.stop = &interrupt.stopped();
    if (!training.tcp) return training;
    training.tcp->tell = [&](const std::string& what) { warn(session.terminal, what); };
    const PlanFile& f = layout.file();
    training.tcp->settings =
        short_digest(fmt::format("{} {} {} {}", job_text, adapt.adapt, nlohmann::json(f.model).dump(),
                                 nlohmann::json(f.training).dump()));
    return training;
  };
  // The run under a layout; `first`: the one that begins it.
  const auto prepare = [&](const Runnable& layout, bool first) {
    TrainingRun training = watched(layout);
    if (first && initialised) training.weights = std::move(initial.values);
    // The peak of the CPU is that of one core; ranks of one process share one GPU.
    const int world = layout.file().plan.world();
    log.use(layout, !layout.on_gpu() ? training.threads * world : training.processes ? world : 1);
    if (first)
      folder.attach(
          training, layout.file(), o.running.seed, [&](const std::string& what) { log.tell(what); },
          [&](const std::string& what) { warn(session.terminal, what); });
    else
      folder.go_on(training, layout.file());
    data.attach(training);
    training.steps = o.steps;
    training.optimizer = {.rate = o.rate,
                          .final_ratio = o.final_ratio,
                          .warmup_steps = o.warmup,
                          .total_steps = o.steps,
                          .weight_decay = o.weight_decay,
                          .clip_norm = o.clip};
    training.job = job_text;
    training.max_skipped = o.max_skipped;
    training.record = true;
    if (traced) training.timer = &traced->timer();
    training.on_step = [&](const StepReport& report) { log.add(report); };
    training.on_evaluation = [&](std::int64_t step, const std::vector<double>& losses, Seconds took) {
      log.add_evaluation(data.evaluation_json(step, losses, took), data.evaluation_text(losses));
    };
    if (!first) return training;
    folder.make();
    training.begin = [&, begin = training.begin](const StateMove& moved) {
      if (begin) begin(moved);
      if (initialised && !o.output.empty())
        keep_hugging_face_files(o.init, kept_hugging_face_files(o.output));
      if (!o.output.empty()) data.keep_tokenizer(kept_hugging_face_files(o.output));
      tell_former(session, runnable->file().former);
      for (const SlowKernels& slow : slow_kernels(o.running)) warn(session.terminal, slow.why);
      if (session.common.json) return;
      print_wrapped(out, session.terminal, heading(*runnable));
      if (data.given()) print_wrapped(out, session.terminal, data.heading(o.steps));
      if (resume)
        log.tell(from ? fmt::format("resuming from {}", from->path().string())
                      : "no checkpoint is there yet: starting with step 0");
      if (!runnable->misfit().empty())
        print_wrapped(
            out, session.terminal,
            fmt::format("note: the plan does not fit its cluster: {}; context and libraries are counted, "
                        "which its ranks here may not need",
                        runnable->misfit()));
      if (own && !own->note.empty()) log.tell(own->note);
      if (own && !question.model.empty()) log.tell("--model is not read: the plan is that of the run so far");
      if (!unused.empty()) log.tell(unused);
      if (!adopted.problem.empty()) log.tell(adopted.problem);
      if (!adopted.as_before.empty()) log.tell("as in the run so far: " + adopted.as_before);
      if (!adopted.changed.empty()) log.tell("other than in the run so far: " + adopted.changed);
      if (!adopted.not_kept.empty())
        log.tell("not kept in the folder of this run, and now: " + adopted.not_kept);
      if (o.checkpoints.keep_all)
        log.tell("no checkpoint is dropped, as it is not known which the run wants: --keep-every says so");
      if (from && new_init) log.tell("--init is not read: the weights are those of the checkpoint");
      if (from && !data.same_as(from->manifest().data))
        log.tell("the tokens are others than those of the run so far");
    };
    return training;
  };

  DecisionLog decisions(o.output);
  AdaptiveRun adaptive(
      adapt, o.running, o.profile, session.presets(), o.steps,
      {.prepare = prepare,
       .tell = [&](const std::string& what) { log.tell(what); },
       .decisions = decisions,
       .folder = folder,
       .report = [&](const StepReport& report) { log.add(report); },
       .meet = [&](const Runnable& r, bool outlives) { return start_processes(watched(r), outlives); },
       .job = [&](const Runnable& r) { return tcp_job(watched(r)); },
       .deadline = Seconds(o.deadline_s)});
  RunResult result = adapt.asked() ? adaptive.train(runnable) : train(prepare(*runnable, true));
  result.measured.device = runnable->on_gpu() ? machine_of(o.running) : inspect_machine().cpu;
  result.measured.build = version_text();
  // A run that was asked to end, and is saved, has done what it should; Ctrl-C is told apart.
  const bool interrupted =
      result.stopped && folder.end_reason().empty() && (interrupt.signal() == SIGINT || !folder.saves());
  const ExitCode code = interrupted ? ExitCode::interrupted : ExitCode::ok;
  if (!result.first_rank) return code;
  folder.sync();
  if (result.steps == 0) {
    if (session.common.json)
      print_json(
          session, "run",
          {{"plan", plan_key(runnable->file().plan)}, {"steps", log.steps()}, {"stopped", result.stopped}});
    else
      out << (result.stopped ? "stopped before the first step\n"
                             : "nothing to do: all steps are done; --steps N asks for more\n");
    return code;
  }

  const TimelineComparison comparison = compare(runnable->graph(), runnable->predicted(), result.measured);
  if (!o.output.empty()) save_timeline(o.output + "/timeline.json", result.measured);
  if (!o.trace.empty())
    write_trace(o.trace,
                trace_events(runnable->graph(), runnable->predicted(), {.prefix = "predicted stage"}) + "," +
                    trace_events(runnable->graph(), result.measured,
                                 {.prefix = "measured stage", .first_process = 1000, .memory = false}));
  if (session.common.json) {
    Json answer = {
        {"plan", plan_key(runnable->file().plan)},
        {"steps", log.steps()},
        {"stopped", result.stopped},
        {"start_time_s", result.starting.v},
        {"memory",
         {{"planned_bytes", result.planned_memory.v}, {"allocated_bytes", result.allocated_memory.v}}},
        {"comparison", comparison_json(comparison)}};
    if (runnable->rests_on()) answer["rests_on"] = shares_json(*runnable->rests_on());
    if (!runnable->misfit().empty()) answer["misfit"] = runnable->misfit();
    if (!unused.empty()) answer["unused_fields"] = unused;
    for (const SlowKernels& slow : slow_kernels(o.running)) answer[slow.key] = slow.why;
    if (adapt.adapt) answer["adaptation"] = decisions.lines();
    if (data.given()) answer["data"] = data.identity(), answer["evaluations"] = log.evaluations();
    print_json(session, "run", answer);
  } else {
    log.print_curves();
    out << "\nthe last step, predicted and measured:\n\n";
    print_comparison(session, comparison);
    if (result.stopped)
      out << fmt::format("\nstopped: {}\n", folder.end_reason().empty() ? "asked to" : folder.end_reason());
    out << '\n';
    if (!o.output.empty()) out << "written: " << o.output << '\n';
    if (planned && !o.output.empty()) o.running.plan = o.output + "/plan.json";
    if (planned && o.output.empty())
      out << "next: -o DIR keeps the plan and the run\n";
    else if (o.profile.empty())
      out << fmt::format(
          "next: sextant profile --for {0} -o profile.json\n      sextant run {0} --profile profile.json\n",
          o.running.plan);
    else if (!o.output.empty())
      out << fmt::format("next: sextant compare {} {} --profile {}\n", o.running.plan, o.output, o.profile);
  }
  return code;
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
                   {"on text, with a look at what is held out",
                    "sextant run tiny.json --steps 4 --data tokens --packing apart --eval-every 2 "
                    "--print-every 2"}},
      .define = [](CLI::App& app) -> Run {
        auto o = std::make_shared<RunVerbOptions>();
        add_running_options(app, o->running);
        add_data_options(app, o->data);
        add_number(app, {.flag = "--steps", .metavar = "N", .text = "optimizer steps", .min = 1, .max = 1e9},
                   o->steps);
        add_number(app, {.flag = "--lr", .metavar = "X", .text = "peak learning rate", .min = 0, .max = 10},
                   o->rate);
        add_number(app,
                   {.flag = "--lr-final-ratio",
                    .metavar = "X",
                    .text = "of the peak, where the cosine ends",
                    .min = 0,
                    .max = 1},
                   o->final_ratio);
        add_number(
            app,
            {.flag = "--warmup", .metavar = "N", .text = "steps of linear warm-up", .min = 0, .max = 1e9},
            o->warmup);
        add_number(app,
                   {.flag = "--weight-decay", .metavar = "X", .text = "of all matrices", .min = 0, .max = 10},
                   o->weight_decay);
        add_number(app,
                   {.flag = "--clip",
                    .metavar = "X",
                    .text = "gradient norm beyond which gradients are scaled",
                    .min = 1e-9,
                    .max = 1e9},
                   o->clip);
        add_number(app,
                   {.flag = "--max-skipped",
                    .metavar = "N",
                    .text = "steps in a row with gradients that are not finite, then the run ends",
                    .min = 1,
                    .max = 1e9},
                   o->max_skipped);
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
        return
            [o, adapt, question, &app](Session& session) { return run(session, app, *o, *adapt, *question); };
      }};
}

}  // namespace sextant
