#include "tools/verbs/run_job.hpp"

#include <chrono>
#include <cstdlib>
#include <ostream>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest.hpp"
#include "runtime/weights/hugging_face_export.hpp"
#include "tools/verbs/run_text.hpp"

namespace sextant {
namespace {

// A rank that never comes back cannot be joined: after the report, the process ends all the same.
void end_soon(const Terminal& terminal, const std::string& report) {
  warn_of_run(terminal, report);
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::_Exit(static_cast<int>(ExitCode::run_failed));
  }).detach();
}

// With what ends a run under any layout, from when its ranks begin to look for each other.
TrainingRun watched(const RunJob& job, const Runnable& layout) {
  TrainingRun training = layout.training();
  training.deadline_floor = Seconds(job.options.deadline_s);
  training.on_late = [&job](const std::string& report) { end_soon(job.session.terminal, report); };
  training.stop = &job.interrupt.stopped();
  if (!training.tcp) return training;
  training.tcp->tell = [&job](const std::string& what) { warn_of_run(job.session.terminal, what); };
  const PlanFile& f = layout.file();
  training.tcp->settings =
      short_digest(fmt::format("{} {} {} {}", job.same, job.adapt.adapt, nlohmann::json(f.model).dump(),
                               nlohmann::json(f.training).dump()));
  return training;
}

// The folder's part, the data's, and what the options say.
void attach_job(const RunJob& job, TrainingRun& training, const Runnable& layout, bool first) {
  const RunVerbOptions& o = job.options;
  // The peak of the CPU is that of one core; ranks of one process share one GPU.
  const int world = layout.file().plan.world();
  job.log.use(layout, !layout.on_gpu() ? training.threads * world : training.processes ? world : 1);
  if (first)
    job.folder.attach(
        training, layout.file(), o.running.seed, [&job](const std::string& what) { job.log.tell(what); },
        [&job](const std::string& what) { warn_of_run(job.session.terminal, what); });
  else
    job.folder.go_on(training, layout.file());
  job.data.attach(training);
  training.steps = o.steps;
  training.optimizer = {.rate = o.rate,
                        .final_ratio = o.final_ratio,
                        .warmup_steps = o.warmup,
                        .total_steps = o.steps,
                        .weight_decay = o.weight_decay,
                        .clip_norm = o.clip};
  training.job = job.same;
  training.max_skipped = o.max_skipped;
  training.record = true;
  if (job.traced) training.timer = &job.traced->timer();
  training.on_step = [&job](const StepReport& report) { job.log.add(report); };
  training.on_evaluation = [&job](std::int64_t step, const std::vector<double>& losses, Seconds took) {
    job.log.add_evaluation(job.data.evaluation_json(step, losses, took), job.data.evaluation_text(losses));
  };
}

// Of the layout that begins the run.
TrainingRun beginning(const RunJob& job, RunStart& start, const Runnable& layout) {
  TrainingRun training = watched(job, layout);
  if (start.initial) training.weights = std::move(start.initial->values);
  attach_job(job, training, layout, true);
  job.folder.make();
  training.begin = [&job, &start, &layout, begin = training.begin](const StateMove& moved) {
    if (begin) begin(moved);
    const RunVerbOptions& o = job.options;
    if (start.initial && !o.output.empty())
      keep_hugging_face_files(o.init, kept_hugging_face_files(o.output));
    if (!o.output.empty()) job.data.keep_tokenizer(kept_hugging_face_files(o.output));
    tell_start(job, start, layout);
  };
  return training;
}

}  // namespace

std::string same_of_ranks(const RunVerbOptions& o, const RunData& data) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", o.running.gemms, o.steps, o.rate,
                     o.final_ratio, o.warmup, o.weight_decay, o.clip, o.running.seed, o.init, data.tokens(),
                     o.checkpoints.save_every, o.data.eval_every, o.data.eval_batches);
}

void warn_of_run(const Terminal& terminal, const std::string& what) {
  terminal.err << wrapped_message(terminal, "sextant run: " + what) << std::flush;
}

TrainingRun training_of(const RunJob& job, RunStart& start, const Runnable& layout, bool first) {
  if (first) return beginning(job, start, layout);
  TrainingRun training = watched(job, layout);
  attach_job(job, training, layout, false);
  return training;
}

AdaptiveRun::Hooks hooks_of(const RunJob& job, RunStart& start, DecisionLog& decisions) {
  return {
      .prepare = [&](const Runnable& layout, bool first) { return training_of(job, start, layout, first); },
      .tell = [&](const std::string& what) { job.log.tell(what); },
      .decisions = decisions,
      .folder = job.folder,
      .report = [&](const StepReport& report) { job.log.add(report); },
      .meet = [&](const Runnable& r, bool outlives) { return start_processes(watched(job, r), outlives); },
      .job = [&](const Runnable& r) { return tcp_job(watched(job, r)); },
      .deadline = Seconds(job.options.deadline_s)};
}

}  // namespace sextant
