// A whole training run: the ranks of a plan as threads of this process, or this process as one rank of an MPI job; the
// same trainer on each. Ends every rank when one fails, and says why first.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline/timeline.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/checkpoint/state_move.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/devices/make_device.hpp"
#include "runtime/execution/trainer/rank_trainer.hpp"

namespace sextant {

// Text that is held out, and how many global batches of it are looked at each time.
struct Evaluation {
  std::string name;
  SequenceSource sequences;
  std::int64_t batches = 1;
};

struct TrainingRun {
  const ExecutionGraph& graph;  // lowered with operands
  const StackSpec& stack;
  const KernelTable& kernels;
  OptimizerSpec optimizer = {};
  SequenceSource sequences = {};
  bool documents_apart =
      false;  // attention does not reach from a document to the one before (step_batch.hpp)
  WeightSource weights = {};
  std::int64_t steps = 1;  // done at the end, with those before `resume`
  int threads = 1;         // of one rank's GEMMs
  int max_skipped = 5;     // steps in a row whose gradients are not finite; then the run ends
  bool processes = false;  // one rank here, the others in processes of their own: of MPI, or of `tcp`
  std::optional<TcpWorld> tcp = {};
  // Of processes, by start_processes(): outlives the run, so that other layouts can follow this one in it. Null: the run
  // makes its own.
  Communicator* world = nullptr;
  std::string job = {};  // beside the graph, what all ranks must have the same of, or the run is refused
  std::optional<LinkShape> shape = {};  // emulated links
  // CPU ranks that take as long as `expected` says of what is their own, times what of a device is left; and links of `shape`
  // as slow as these say.
  const EmulatedSpeeds* emulated = nullptr;
  CpuDeviceOptions device = {};
  std::optional<CudaDeviceOptions> cuda = {};  // on a GPU, which the ranks of this process share
  bool record =
      false;  // times every op: of every step for on_spans and a timer, else of the first ones and the last
  // Of what is the same in every step. Where it is on, only the first and last steps are recorded.
  Replay replay = Replay::off;
  const OpTimer* timer = nullptr;  // that times them; nullptr: events around them
  std::function<void(int rank, std::int64_t step, const std::vector<Span>&)> on_spans =
      {};  // on the rank's thread

  // Predicted durations by WorkId: deadlines of the watchdog. Empty: no watchdog.
  std::vector<Seconds> expected = {};
  Seconds deadline_floor{60};
  // What ends the run in the middle of things, after everything has been told to end: a straggler; under MPI also what only
  // this process has met.
  std::function<void(const std::string& report)> on_late = {};

  // Ends the run after a step or a batch of held-out text, on all ranks together.
  const std::atomic<bool>* stop = nullptr;
  std::function<bool()> time_to_stop = {};  // the same; asked on world rank 0 before each of them
  const CheckpointOptions* save = nullptr;  // a run that ends well has saved its last state
  const Checkpoint* resume = nullptr;       // goes on from there, in place of `weights`
  // State that another layout has left in memory: when there is some, the run goes on from it, before anything else. Of
  // ranks that are processes each has its own, and `world` is there.
  CarriedState* carried = nullptr;
  // Asked on world rank 0 behind each step: the layout is to change. The run pauses then, on all ranks together, with its
  // state in `carried`, and saves nothing.
  std::function<bool()> time_to_change = {};
  // Of processes that have been started to outlive ranks, on CPUs and with `carried`: a rank that is lost ends the step, not the
  // job. Told which states this rank can have, it agrees with the others that are left on the step behind which they all go
  // on. The state behind that is then in `carried`, beside what of the same step was there already, and the run returns
  // (RunResult::lost).
  std::function<std::int64_t(Recoverable)> regroup = {};
  // On world rank 0, before anything else: takes what only one may have. When it throws, all ranks end.
  std::function<void()> claim = {};
  // There, when every rank has its state and before the first step. Told what was carried here; nothing where nothing was.
  std::function<void(const StateMove&)> begin = {};
  std::function<void(const StepReport&)> on_step = {};  // on world rank 0
  std::vector<Evaluation> evaluations = {};
  std::int64_t evaluate_every = 0;  // steps, and behind the last one; 0: never
  std::function<void(std::int64_t step, const std::vector<double>& losses, Seconds took)> on_evaluation =
      {};  // on world rank 0; losses by evaluation
  std::function<void(RankTrainer&, int rank)> on_start = {}, on_end = {};  // on every rank
};

struct RunResult {
  std::int64_t steps = 0;
  bool stopped = false;   // before the last step
  bool changing = false;  // paused for another layout; not `stopped`
  bool lost = false;      // a rank; the others are regrouped, and their state is in `carried`
  // Of processes, on each: the last step that it has to its end, which the first one may not have reported when it was lost.
  std::optional<StepReport> last;
  StateMove moved;          // what was carried here; `took`: by the slowest rank of this process
  bool first_rank = false;  // world rank 0 was of this process
  // Until this process's ranks stood before their first step: devices, memory, libraries, weights.
  Seconds starting;
  // On the device, by the rank of this process that allocates most: what its plan says, and what it did at most.
  Bytes planned_memory, allocated_memory;
  Timeline measured;  // of the last recorded step; spans of this process's ranks
};

// The job of `run.tcp`, as long as the run is not asked to stop.
TcpWorld tcp_job(const TrainingRun& run);

// This process and the others of its job, by MPI or by `run.tcp`. Waits for them; BackendError when they do not come.
// `outlives_ranks`: of `run.tcp`, and the same on all of them (TcpWorld).
std::unique_ptr<Communicator> start_processes(const TrainingRun& run, bool outlives_ranks = false);

// Throws what ended the run: ConfigError (a plan that cannot be run here, bad data) or BackendError.
RunResult train(const TrainingRun&);

}  // namespace sextant
