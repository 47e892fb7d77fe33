#include "runtime/training/step_loop.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {
namespace {

// Is the run to end, as far as this rank knows?
bool asked_to_stop(const TrainingRun& run, int rank) {
  return (run.stop && run.stop->load()) || (rank == 0 && run.time_to_stop && run.time_to_stop());
}

// False when the run is to end before it has looked at everything: nothing is reported then.
bool evaluate(const TrainingRun& run, RankTrainer& trainer, int rank, std::int64_t step) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<double> losses;
  for (const Evaluation& e : run.evaluations) {
    const auto loss = trainer.evaluate(e.sequences, e.batches, [&] { return asked_to_stop(run, rank); });
    if (!loss) return false;
    losses.push_back(*loss);
  }
  const Seconds took(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (rank == 0 && run.on_evaluation) run.on_evaluation(step, losses, took);
  return true;
}

}  // namespace

void train_steps(const TrainingRun& run, RankTrainer& trainer, CheckpointWriter* writer, int rank,
                 RunShared& shared, StepSpans& spans) {
  const std::int64_t first = trainer.clock().step;
  for (std::int64_t s = first; s < run.steps; ++s) {
    std::array<double, CheckpointWriter::kVotes> votes{};
    if (writer) votes = writer->votes();
    const bool stop = asked_to_stop(run, rank);
    const bool change = rank == 0 && run.carried && s > first && run.time_to_change && run.time_to_change();
    // Every step, where somebody looks at each; else the last, and the first ones in case there is no other.
    const bool replays = run.replay == Replay::on;
    const bool looked_at = !replays && (run.on_spans || run.timer);
    const bool recorded = run.record && (looked_at || s < first + (replays ? 1 : 3) || s + 1 == run.steps);
    auto report = trainer.step(stop || change, recorded ? &spans : nullptr, votes);
    if (writer) writer->heard(votes);
    if (!report) {
      double stopped = stop ? 1 : 0;  // of any rank; else the layout changes
      trainer.agree({&stopped, 1});
      const std::lock_guard lock(shared.mutex);
      (stopped > 0 ? shared.result.stopped : shared.result.changing) = true;
      return;
    }
    if (run.processes) {
      const std::lock_guard lock(shared.mutex);
      shared.result.last = report;
    }
    if (recorded && run.timer) run.timer->end_step(rank, spans.spans());
    if (recorded && run.on_spans) run.on_spans(rank, s, spans.spans());
    const std::int64_t skipped = trainer.clock().skipped_in_a_row;
    if (writer && skipped < run.max_skipped) writer->save_if_due(*report);
    if (rank == 0) {
      const std::lock_guard lock(shared.mutex);
      ++shared.result.steps;
      if (run.on_step) run.on_step(*report);
    }
    if (skipped >= run.max_skipped) {
      trainer.finish();
      if (writer) writer->finish();
      shared.all_throw = true;
      throw BackendError(fmt::format(
          "step {}: loss {} and gradient norm {}: not finite {} steps in a row\n  the weights "
          "are as they were "
          "before the first of them{}; try a lower --lr, a longer --warmup, or other data",
          report->step, report->loss, report->gradient_norm, skipped, writer ? ", and are saved" : ""));
    }
    const bool looks = run.evaluate_every > 0 && ((s + 1) % run.evaluate_every == 0 || s + 1 == run.steps);
    if (looks && !evaluate(run, trainer, rank, s)) {
      const std::lock_guard lock(shared.mutex);
      shared.result.stopped = true;
      return;
    }
  }
}

}  // namespace sextant
