#include "runtime/training/rank_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/graph/op_groups.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/execution/device_memory.hpp"
#include "runtime/execution/stage_view.hpp"
#include "runtime/training/step_loop.hpp"

namespace sextant {
namespace {

// What one rank cannot do, none goes on without: it throws its own reason, and the others that it has one.
template <class Act>
void together(const TrainingRun& run, Communicator& world, RunShared& shared, const Act& act) {
  std::exception_ptr why;
  try {
    act();
  } catch (...) {
    why = std::current_exception();
  }
  double unable = why ? world.rank() : -1;
  world.all_reduce(&unable, &unable, 1, Dtype::fp64, Reduction::max, {});
  if (unable < 0) return;
  shared.all_throw = true;
  if (why) std::rethrow_exception(why);
  if (!run.processes) throw Aborted(fmt::format("rank {:g} cannot begin", unable));
  throw ConfigError(Problem{"", fmt::format("rank {:g}", unable), "a reason not to begin", "none",
                            "its message gives the reason"});
}

// Processes of one MPI job may have been given different plans; they would wait for each other until the deadline.
void agree(const std::string& job, Communicator& world, RunShared& shared) {
  const std::string mine = digest(job);
  std::string all(mine.size() * static_cast<std::size_t>(world.size()), '\0');
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(world.size()),
                                        static_cast<std::int64_t>(mine.size()));
  world.all_gather(mine.data(), all.data(), bytes, {});
  for (int rank = 1; rank < world.size(); ++rank)
    if (all.compare(static_cast<std::size_t>(rank) * mine.size(), mine.size(), all, 0, mine.size()) != 0) {
      shared.all_throw = true;
      throw ConfigError(Problem{"", "the job", fmt::format("rank {} with a plan or options of its own", rank),
                                "what rank 0 has", "start every rank with the same command and files"});
    }
}

// The run has ended well but for this.
[[noreturn]] void end_without_tokens(const TokensMissing& missing, const TrainingRun& run,
                                     std::int64_t step) {
  if (missing.why) {
    try {
      std::rethrow_exception(missing.why);
    } catch (const ConfigError& e) {
      auto problems = e.problems();
      if (run.save) {
        std::string& hint = problems.front().hint;
        hint += fmt::format("{}the run is saved: --resume continues from step {}", hint.empty() ? "" : "; ",
                            step);
      }
      throw ConfigError(std::move(problems));
    }
  }
  if (!run.processes) throw Aborted("another rank cannot have its tokens");
  throw ConfigError(Problem{"", fmt::format("step {}", step), "a rank that cannot have its tokens",
                            "tokens for all ranks", "its message gives the reason"});
}

// A rank is lost, and this one goes on with the others that are left: what it has goes into `carried`. `whole`: the trainer has
// its first values.
void leave_lost_step(const TrainingRun& run, RankTrainer& trainer, bool whole, int rank, RunShared& shared) {
  if (shared.watchdog) shared.watchdog->between(rank, Watchdog::Between::nothing);
  auto& held = run.carried->ranks;
  std::erase(held, nullptr);
  Recoverable own;
  if (whole)
    own = trainer.recoverable();
  else if (!held.empty())
    own = {held.front()->clock().step, held.front()->clock().step};
  const std::int64_t step = run.regroup(own);
  if (whole && step >= own.first && step <= own.last) {
    trainer.settle(step);
    held.push_back(std::make_unique<HeldState>(trainer.state(), trainer.device(), trainer.clock()));
  }
  std::erase_if(held, [&](const auto& one) { return one->clock().step != step; });
  const std::lock_guard lock(shared.mutex);
  shared.result.lost = true;
  shared.result.changing = shared.result.stopped = false;  // those that are left ask anew
}

// Starting up takes as long as it takes; what is watched is how long a rank waits for the others meanwhile.
template <class Meet>
void meet_at_start(RunShared& shared, int rank, const Meet& meet) {
  if (shared.watchdog) shared.watchdog->between(rank, Watchdog::Between::starting);
  meet();
  if (shared.watchdog) shared.watchdog->between(rank, Watchdog::Between::nothing);
}

Seconds seconds_since(std::chrono::steady_clock::time_point start) {
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

RankOptions rank_options(const TrainingRun& run, Communicator& world, RunShared& shared) {
  RankOptions options;
  options.threads = run.threads;
  options.executor.replay = run.replay;
  options.documents_apart = run.documents_apart;
  options.outlives_ranks = static_cast<bool>(run.regroup);
  options.executor.time_ops = run.record;
  options.executor.watchdog = shared.watchdog.get();
  options.executor.timer = run.record ? run.timer : nullptr;
  if (run.emulated) {
    const ParallelPlan& plan = run.graph.plan;
    const int shard = shard_of(plan, RankGrid(plan).coord(world.rank()));
    options.executor.least_time = [&run, rank = static_cast<std::size_t>(world.rank()),
                                   owned =
                                       shares_of_largest(plan)[static_cast<std::size_t>(shard)]](OpId id) {
      const Op& op = run.graph.ops[id];
      if (!computes_alone(op)) return Seconds(0);
      const double share = works_on_slice(op) ? owned : 1.0;
      return run.expected[op.work] * (share / run.emulated->compute[rank].load());
    };
  }
  options.executor.on_failure = [&world](const std::string& what) { world.abort(what); };
  return options;
}

// A rank on its device, from its first state to its last.
class RankRun {
 public:
  RankRun(const TrainingRun& run, Communicator& world, RunShared& shared, Device& device)
      : run_(run),
        world_(world),
        shared_(shared),
        device_(device),
        trainer_(run.graph, run.stack, device, run.kernels, world, run.optimizer, run.sequences,
                 rank_options(run, world, shared)),
        spans_(run.graph.ops.size()) {
    if (run.cuda) trainer_.rehearse();
  }

  void train();
  // A rank is lost.
  void leave() {
    writer_.reset();  // what it was writing is not committed, unless all files were there
    leave_lost_step(run_, trainer_, whole_, world_.rank(), shared_);
  }
  void note_memory();
  void note_spans();

 private:
  void begin();
  void take_first_state();
  void take_carried();
  bool is_changing() {
    const std::lock_guard lock(shared_.mutex);
    return shared_.result.changing;
  }
  void carry();

  const TrainingRun& run_;
  Communicator& world_;
  RunShared& shared_;
  Device& device_;
  RankTrainer trainer_;
  std::optional<CheckpointWriter> writer_;
  StepSpans spans_;
  bool whole_ = false;  // the state
};

// From ranks of the layout before.
void RankRun::take_carried() {
  const auto start = std::chrono::steady_clock::now();
  StateMove move =
      take_state(held_by(*run_.carried, world_.rank(), world_.size()), world_, trainer_.state(), device_);
  trainer_.resume(move.clock);
  const Seconds took = seconds_since(start);
  const std::lock_guard lock(shared_.mutex);
  move.took = std::max(shared_.result.moved.took, took);
  shared_.result.moved = move;
}

void RankRun::take_first_state() {
  if (run_.carried && run_.carried->present()) {
    take_carried();
  } else if (run_.resume) {
    restore(trainer_.state(), device_, *run_.resume);
    trainer_.resume(run_.resume->manifest().clock);
  } else {
    trainer_.initialise(run_.weights);
  }
  whole_ = true;
  if (run_.save)
    writer_.emplace(*run_.save, run_.optimizer, trainer_, world_.rank(), world_.size(),
                    run_.resume ? std::optional(trainer_.clock().step) : std::nullopt);
  if (run_.on_start) run_.on_start(trainer_, world_.rank());
}

// All ranks have their state, or none goes on.
void RankRun::begin() {
  std::exception_ptr unable;
  try {
    take_first_state();
  } catch (...) {  // damage that only this rank has met
    unable = std::current_exception();
  }
  meet_at_start(shared_, world_.rank(), [&] {
    together(run_, world_, shared_, [&] {
      if (unable) std::rethrow_exception(unable);
    });
    together(run_, world_, shared_, [&] {
      if (run_.begin && world_.rank() == 0) run_.begin(shared_.result.moved);
    });
  });
  const Seconds took = seconds_since(shared_.began);
  const std::lock_guard lock(shared_.mutex);
  shared_.result.starting = std::max(shared_.result.starting, took);
}

// Holds the state for the ranks of the next layout.
void RankRun::carry() {
  auto& held = run_.carried->ranks;
  trainer_.barrier();  // all have taken what was carried here
  if (run_.processes || world_.rank() == 0) {
    held.clear();
    held.resize(static_cast<std::size_t>(world_.size()));
  }
  trainer_.barrier();
  held[static_cast<std::size_t>(world_.rank())] =
      std::make_unique<HeldState>(trainer_.state(), device_, trainer_.clock());
}

void RankRun::train() {
  begin();
  std::optional<TokensMissing> missing;
  try {
    train_steps(run_, trainer_, writer_ ? &*writer_ : nullptr, world_.rank(), shared_, spans_);
  } catch (const TokensMissing& e) {
    missing = e;
  }
  trainer_.finish();
  const bool changing = is_changing();
  if (writer_) changing ? writer_->settle() : writer_->finish();
  if (changing) carry();
  if (missing) {
    shared_.all_throw = true;
    end_without_tokens(*missing, run_, trainer_.clock().step);
  }
  if (run_.on_end) run_.on_end(trainer_, world_.rank());
}

// What the fullest device of the run held, and what was planned of it.
void RankRun::note_memory() {
  const int stage = trainer_.at().pp;
  const ArenaPlan arena = plan_arena(run_.graph, StageView(run_.graph, stage));
  const std::int64_t planned =
      device_.unified()
          ? arena.extent[static_cast<std::size_t>(Space::device)]
          : device_memory(run_.graph, run_.stack.rules, stage, takes_scratch(run_.kernels)).total();
  const Bytes allocated = device_.memory(Space::device).peak;
  const std::lock_guard lock(shared_.mutex);
  if (allocated > shared_.result.allocated_memory) {
    shared_.result.allocated_memory = allocated;
    shared_.result.planned_memory = Bytes(planned);
  }
}

void RankRun::note_spans() {
  const std::lock_guard lock(shared_.mutex);
  shared_.result.measured.ranks.push_back({world_.rank(), spans_.take()});
}

}  // namespace

void train_rank(const TrainingRun& run, Communicator& world, RunShared& shared) {
  meet_at_start(shared, world.rank(), [&] {
    if (run.processes) agree(fmt::format("{} {}", shared.result.measured.graph_hash, run.job), world, shared);
    // Only rank 0 knows whether the run may begin.
    together(run, world, shared, [&] {
      if (run.claim && world.rank() == 0) run.claim();
    });
  });
  CpuDeviceOptions device_options = run.device;
  device_options.on_error = [&](const std::string& what) { world.abort(what); };
  const auto device = run.cuda ? make_cuda_device(*run.cuda) : make_cpu_device(device_options);
  RankRun rank(run, world, shared, *device);
  try {
    rank.train();
  } catch (const RankLost&) {
    if (!run.regroup) throw;
    return rank.leave();
  }
  rank.note_memory();
  if (run.record) rank.note_spans();
}

}  // namespace sextant
