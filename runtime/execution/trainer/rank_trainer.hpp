// One rank of a training run: memory from the graph, weights, and step after step through the executor. The update of a
// step is made at the beginning of the next one (the graph runs from clip to clip), so finish() makes the last.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/plan/stack_spec.hpp"
#include "runtime/execution/executor.hpp"
#include "runtime/execution/launcher/launcher.hpp"

namespace sextant {

// AdamW with linear warm-up and a cosine to `final_ratio` of the rate (Loshchilov and Hutter 2019; GPT-3's schedule).
struct OptimizerSpec {
  double rate = 3e-4;
  double final_ratio = 0.1;
  std::int64_t warmup_steps = 0, total_steps = 0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double clip_norm = 1.0;  // gradients beyond it are scaled by clip_norm / (norm + 1e-6)
  double rate_at(std::int64_t step) const;
  bool operator==(const OptimizerSpec&) const = default;
};

// How far a run is.
struct TrainerClock {
  std::int64_t step = 0;     // steps done, which is the number of the next
  std::int64_t updates = 0;  // of them: those that changed the weights
  std::int64_t skipped = 0, skipped_in_a_row = 0;
  bool operator==(const TrainerClock&) const = default;
};

struct StepReport {
  std::int64_t step = 0;
  double loss = 0;  // mean over valid targets of the global batch
  double gradient_norm = 0, rate = 0;
  bool skipped = false;  // the gradient was not finite: nothing is updated
  std::int64_t tokens = 0;
  Seconds duration;
  Bytes memory;        // peak so far of the rank that holds most, on its device
  Seconds save_pause;  // for which training stood still at this step for a save; 0 where it did not
};

struct RankOptions {
  int threads = 1;  // inside GEMMs
  bool documents_apart =
      false;  // attention does not reach from a document to the one before (step_batch.hpp)
  // Another rank may be lost and this one go on: no rank updates its state with a step that not all have to the end.
  bool outlives_ranks = false;
  ExecutorOptions executor;
};

// Between which steps the state can be that a rank has when another was lost; the same where it can be one alone.
struct Recoverable {
  std::int64_t first = 0, last = std::int64_t{1} << 53;  // any: it has none
};

// What the runtime cannot do about a plan, before anything is allocated; empty when it can run.
std::vector<Problem> runtime_refuses(const ModelSpec&, const TrainingSpec&, const ParallelPlan&,
                                     const StackSpec&, const KernelTable&);

// No rank has begun the step, or the batch of held-out text, as one cannot have its tokens; thrown on all of them alike.
class TokensMissing : public std::runtime_error {
 public:
  explicit TokensMissing(std::exception_ptr reason)
      : std::runtime_error("a rank cannot have its tokens"), why(std::move(reason)) {}
  std::exception_ptr why;  // of this rank; null: it has its own
};

class RankTrainer {
 public:
  // Collective over `world`. The graph was lowered with operands; everything given outlives the trainer.
  RankTrainer(const ExecutionGraph&, const StackSpec&, Device&, const KernelTable&, Communicator& world,
              const OptimizerSpec&, SequenceSource, RankOptions);

  // Before the state has its first values: one step on whatever memory holds, whose results do not count, so that
  // libraries load, connect, take their memory and choose what is fastest before anything is timed. Collective.
  void rehearse();
  void initialise(const WeightSource& weights);
  // The next step; or nothing, when any rank asks to stop. `votes` are summed over the ranks before it. Throws TokensMissing.
  std::optional<StepReport> step(bool stop = false, SpanRecorder* recorder = nullptr,
                                 std::span<double> votes = {});
  void finish();  // updates with the last step's gradients
  // Goes on behind `clock`: the state has been written to state().
  void resume(const TrainerClock& clock) { clock_ = clock; }
  const TrainerClock& clock() const { return clock_; }
  // Sums over the ranks, however long they take.
  void agree(std::span<double> votes);
  // Behind a RankLost, where ranks outlive that: the state that this rank has, between two steps. All ranks that were in the
  // same step have one in common. settle() makes it that of `step`.
  Recoverable recoverable() const;
  void settle(std::int64_t step);
  // The mean loss of `batches` global batches (steps 0, 1, ... of the source), at the weights as they are. Training goes
  // on from it to the same bits as without it. Nothing when any rank asks to stop before the last batch. Throws TokensMissing.
  std::optional<double> evaluate(const SequenceSource&, std::int64_t batches,
                                 const std::function<bool()>& stop = {});

  double gradient_factor = 1;  // 1; anything else is fault injection
  // Called before an update changes the state, which somebody may still be reading.
  std::function<void()> before_update = {};

  void barrier() { report_->barrier({}); }  // of all ranks
  // All ranks, for calls about the host's memory between steps.
  Communicator& all_ranks() { return *report_; }
  const RankGroups& groups() const { return groups_; }
  const RankState& state() const { return state_; }
  RankState& state() { return state_; }
  Device& device() { return device_; }
  StepLauncher& launcher() { return launcher_; }
  const Executor& executor() const { return executor_; }
  const RankCoord& at() const { return at_; }

 private:
  void lend_scratch();  // to the kernels of every stream
  bool rehearsed_before(OpId);
  StepBatch batch(const SequenceSource&, std::int64_t step) const;
  // Makes it the one to work on; why that cannot be, if it cannot.
  std::exception_ptr take_batch(const SequenceSource&, std::int64_t step);
  void sum(std::span<double> values);  // over all ranks, outside of the graph
  Bytes most_memory();
  void between(Watchdog::Between);  // tells the watchdog, when there is one

  const ExecutionGraph& graph_;
  Device& device_;
  OptimizerSpec optimizer_;
  SequenceSource source_;
  int rank_;
  Watchdog* watchdog_;
  RankCoord at_;
  bool apart_;
  std::unique_ptr<Communicator> report_;
  RankGroups groups_;
  Arena arena_;
  RankState state_;
  StepLauncher launcher_;
  Executor executor_;
  std::optional<std::map<std::pair<WorkId, bool>, int>> rehearsed_;  // while a step is rehearsed: how often
  TrainerClock clock_;
  bool pending_ = false;   // the update of the step before clock_.step
  bool updating_ = false;  // it is being made
  TrainerClock before_;    // the clock without that step, while it is pending
  bool outlives_;
  int steps_here_ = 0;  // that most_memory_ is of, up to two
  Bytes most_memory_;
};

}  // namespace sextant
