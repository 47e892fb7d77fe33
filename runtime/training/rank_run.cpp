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
  throw ConfigError(
      Problem{"", fmt::format("rank {:g}", unable), "a reason not to begin", "none", "it says which"});
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
                            "tokens for all ranks", "it says why"});
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

}  // namespace

void train_rank(const TrainingRun& run, Communicator& world, RunShared& shared) {
  // Starting up takes as long as it takes; what is watched is how long a rank waits for the others meanwhile.
  const auto wait = [&](const auto& meet) {
    if (shared.watchdog) shared.watchdog->between(world.rank(), Watchdog::Between::starting);
    meet();
    if (shared.watchdog) shared.watchdog->between(world.rank(), Watchdog::Between::nothing);
  };
  wait([&] {
    if (run.processes) agree(fmt::format("{} {}", shared.result.measured.graph_hash, run.job), world, shared);
    // Only rank 0 knows whether the run may begin.
    together(run, world, shared, [&] {
      if (run.claim && world.rank() == 0) run.claim();
    });
  });
  CpuDeviceOptions device_options = run.device;
  device_options.on_error = [&](const std::string& what) { world.abort(what); };
  const auto device = run.cuda ? make_cuda_device(*run.cuda) : make_cpu_device(device_options);
  RankOptions options;
  options.threads = run.threads;
  options.executor.replay = run.replay;
  options.documents_apart = run.documents_apart;
  options.outlives_ranks = static_cast<bool>(run.regroup);
  options.executor.time_ops = run.record;
  options.executor.watchdog = shared.watchdog.get();
  options.executor.timer = run.record ? run.timer : nullptr;
  if (run.emulated)
    options.executor.least_time = [&run, rank = static_cast<std::size_t>(world.rank())](OpId id) {
      const Op& op = run.graph.ops[id];
      return computes_alone(op) ? run.expected[op.work] * (1 / run.emulated->compute[rank].load())
                                : Seconds(0);
    };
  options.executor.on_failure = [&](const std::string& what) { world.abort(what); };
  RankTrainer trainer(run.graph, run.stack, *device, run.kernels, world, run.optimizer, run.sequences,
                      std::move(options));
  std::optional<CheckpointWriter> writer;
  StepSpans spans(run.graph.ops.size());
  bool whole = false;  // the state
  if (run.cuda) trainer.rehearse();
  const auto train_from_state = [&] {
    std::exception_ptr unable;
    try {
      if (run.carried && run.carried->present()) {
        const auto start = std::chrono::steady_clock::now();
        StateMove move =
            take_state(held_by(*run.carried, world.rank(), world.size()), world, trainer.state(), *device);
        trainer.resume(move.clock);
        const Seconds took(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        const std::lock_guard lock(shared.mutex);
        move.took = std::max(shared.result.moved.took, took);
        shared.result.moved = move;
      } else if (run.resume) {
        restore(trainer.state(), *device, *run.resume);
        trainer.resume(run.resume->manifest().clock);
      } else {
        trainer.initialise(run.weights);
      }
      whole = true;
      if (run.save)
        writer.emplace(*run.save, run.optimizer, trainer, world.rank(), world.size(),
                       run.resume ? std::optional(trainer.clock().step) : std::nullopt);
      if (run.on_start) run.on_start(trainer, world.rank());
    } catch (...) {  // damage that only this rank has met
      unable = std::current_exception();
    }
    wait([&] {
      together(run, world, shared, [&] {
        if (unable) std::rethrow_exception(unable);
      });
      together(run, world, shared, [&] {
        if (run.begin && world.rank() == 0) run.begin(shared.result.moved);
      });
    });
    {
      const Seconds since(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - shared.began).count());
      const std::lock_guard lock(shared.mutex);
      shared.result.starting = std::max(shared.result.starting, since);
    }
    std::optional<TokensMissing> missing;
    try {
      train_steps(run, trainer, writer ? &*writer : nullptr, world.rank(), shared, spans);
    } catch (const TokensMissing& e) {
      missing = e;
    }
    trainer.finish();
    bool changing = false;
    {
      const std::lock_guard lock(shared.mutex);
      changing = shared.result.changing;
    }
    if (writer) changing ? writer->settle() : writer->finish();
    if (changing) {
      auto& held = run.carried->ranks;
      trainer.barrier();  // all have taken what was carried here
      if (run.processes || world.rank() == 0) {
        held.clear();
        held.resize(static_cast<std::size_t>(world.size()));
      }
      trainer.barrier();
      held[static_cast<std::size_t>(world.rank())] =
          std::make_unique<HeldState>(trainer.state(), *device, trainer.clock());
    }
    if (missing) {
      shared.all_throw = true;
      end_without_tokens(*missing, run, trainer.clock().step);
    }
    if (run.on_end) run.on_end(trainer, world.rank());
  };
  try {
    train_from_state();
  } catch (const RankLost&) {
    if (!run.regroup) throw;
    writer.reset();  // what it was writing is not committed, unless all files were there
    return leave_lost_step(run, trainer, whole, world.rank(), shared);
  }
  {
    const int stage = trainer.at().pp;
    const ArenaPlan arena = plan_arena(run.graph, StageView(run.graph, stage));
    const std::int64_t planned =
        device->unified()
            ? arena.extent[static_cast<std::size_t>(Space::device)]
            : device_memory(run.graph, run.stack.rules, stage, takes_scratch(run.kernels)).total();
    const Bytes allocated = device->memory(Space::device).peak;
    const std::lock_guard lock(shared.mutex);
    if (allocated > shared.result.allocated_memory) {
      shared.result.allocated_memory = allocated;
      shared.result.planned_memory = Bytes(planned);
    }
  }
  if (run.record) {
    const std::lock_guard lock(shared.mutex);
    shared.result.measured.ranks.push_back({world.rank(), spans.take()});
  }
}

}  // namespace sextant
