// The steps of one rank, evaluations and checkpoints between them, until the last step, or the one before which the run is
// asked to end. Internal to runtime/training.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"
#include "runtime/training/run_shared.hpp"
#include "runtime/training/training_run.hpp"

namespace sextant {

// Of the step that was recorded last, by op.
class StepSpans final : public SpanRecorder {
 public:
  explicit StepSpans(std::size_t ops) : spans_(ops) {}
  void record(int, OpId op, Span span) override { spans_[op] = span; }
  std::vector<Span>& spans() { return spans_; }
  std::vector<Span> take() { return std::move(spans_); }

 private:
  std::vector<Span> spans_;
};

// `writer` may be null. Throws BackendError when max_skipped steps in a row are not finite.
void train_steps(const TrainingRun&, RankTrainer&, CheckpointWriter* writer, int rank, RunShared&,
                 StepSpans&);

}  // namespace sextant
