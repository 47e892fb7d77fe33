#include "runtime/training/training_run.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include <fmt/format.h>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/graph/op_groups.hpp"
#include "runtime/execution/device_memory.hpp"

namespace sextant {
namespace {

class Spans final : public SpanRecorder {
 public:
  explicit Spans(std::size_t ops) : spans_(ops) {}
  void record(int, OpId op, Span span) override { spans_[op] = span; }
  std::vector<Span>& spans() { return spans_; }
  std::vector<Span> take() { return std::move(spans_); }

 private:
  std::vector<Span> spans_;
};

// What this process shares between its ranks.
struct Shared {
  std::mutex mutex;
  RunResult result;
  std::unique_ptr<Watchdog> watchdog;
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  std::atomic<bool> all_throw{false};  // what ends this rank ends the others too, without being told
};

// What one rank cannot do, none goes on without: it throws its own reason, and the others that it has one.
template <class Act>
void together(const TrainingRun& run, Communicator& world, Shared& shared, const Act& act) {
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
void agree(const std::string& job, Communicator& world, Shared& shared) {
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

// Until the last step, or the one before which the run is asked to end.
void train_steps(const TrainingRun& run, RankTrainer& trainer, CheckpointWriter* writer, int rank,
                 Shared& shared, Spans& spans) {
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
        hint +=
            fmt::format("{}the run is saved: --resume goes on from step {}", hint.empty() ? "" : "; ", step);
      }
      throw ConfigError(std::move(problems));
    }
  }
  if (!run.processes) throw Aborted("another rank cannot have its tokens");
  throw ConfigError(Problem{"", fmt::format("step {}", step), "a rank that cannot have its tokens",
                            "tokens for all ranks", "it says why"});
}

void train_rank(const TrainingRun& run, Communicator& world, Shared& shared) {
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
  if (run.cuda) trainer.rehearse();
  std::exception_ptr unable;
  try {
    if (run.carried && run.carried->present()) {
      const auto start = std::chrono::steady_clock::now();
      const StateMove move =
          take_state(held_by(*run.carried, world.rank(), world.size()), world, trainer.state(), *device);
      trainer.resume(move.clock);
      const Seconds took(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      const std::lock_guard lock(shared.mutex);
      shared.result.moved_bytes += move.received_bytes;
      shared.result.moving = std::max(shared.result.moving, took);
    } else if (run.resume) {
      restore(trainer.state(), *device, *run.resume);
      trainer.resume(run.resume->manifest().clock);
    } else {
      trainer.initialise(run.weights);
    }
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
      if (run.begin && world.rank() == 0) run.begin();
    });
  });
  {
    const Seconds since(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - shared.began).count());
    const std::lock_guard lock(shared.mutex);
    shared.result.starting = std::max(shared.result.starting, since);
  }
  Spans spans(run.graph.ops.size());
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
    if (world.rank() == 0) held.clear(), held.resize(static_cast<std::size_t>(world.size()));
    trainer.barrier();
    held[static_cast<std::size_t>(world.rank())] =
        std::make_unique<HeldState>(trainer.state(), *device, trainer.clock());
  }
  if (missing) {
    shared.all_throw = true;
    end_without_tokens(*missing, run, trainer.clock().step);
  }
  if (run.on_end) run.on_end(trainer, world.rank());
  {
    const int stage = trainer.at().pp;
    const ArenaPlan arena = plan_arena(run.graph, StageView(run.graph, stage));
    const std::int64_t planned =
        device->unified()
            ? arena.extent[static_cast<std::size_t>(Space::device)]
            : device_memory(run.graph, run.stack.rules, stage, takes_scratch(run.kernels)).total();
    const Bytes allocated = device->memory(Space::device).peak;
    const std::lock_guard lock(shared.mutex);
    if (allocated > shared.result.allocated_memory)
      shared.result.allocated_memory = allocated, shared.result.planned_memory = Bytes(planned);
  }
  if (run.record) {
    const std::lock_guard lock(shared.mutex);
    shared.result.measured.ranks.push_back({world.rank(), spans.take()});
  }
}

// The spans of every stage from the first of its ranks, on all processes: each has its own rank's.
void share_spans(const ExecutionGraph& graph, Communicator& world, std::vector<Span>& spans) {
  const RankGrid grid(graph.plan);
  const int stage = grid.coord(world.rank()).pp;
  bool first = true;
  for (int r = 0; r < world.rank(); ++r) first = first && grid.coord(r).pp != stage;
  std::vector<double> times(2 * spans.size(), 0.0);
  for (std::size_t op = 0; op < spans.size() && first; ++op)
    if (graph.ops[op].stage == stage) times[2 * op] = spans[op].start, times[2 * op + 1] = spans[op].end;
  world.all_reduce(times.data(), times.data(), static_cast<std::int64_t>(times.size()), Dtype::fp64,
                   Reduction::sum, {});
  for (std::size_t op = 0; op < spans.size(); ++op) spans[op] = {times[2 * op], times[2 * op + 1]};
}

// Until MPI has come up, nobody can be told anything: a rank that is stopped, or never started, would be waited for for ever.
std::unique_ptr<Communicator> start_mpi(const TrainingRun& run) {
  const Seconds limit = run.deadline_floor * Watchdog::kStarting;
  const std::jthread timer([&](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any over;
    std::unique_lock lock(mutex);
    over.wait_for(lock, stop, std::chrono::duration<double>(limit.v), [] { return false; });
    if (!stop.stop_requested() && run.on_late)
      run.on_late(fmt::format(
          "MPI has not come up within {:.3g} s: a rank of the job is stopped, or has not started\n",
          limit.v));
  });
  return make_mpi_world();
}

// What one process meets in the middle of a run would be waited for by the others, and its reason die with MPI: it is told
// to them and to the user before anything is taken down.
void train_process(const TrainingRun& run, Communicator& world, Shared& shared) {
  try {
    train_rank(run, world, shared);
  } catch (const Aborted&) {
    throw;
  } catch (const std::exception& error) {
    if (!shared.all_throw) {
      const std::string why = fmt::format("rank {}: {}", world.rank(), error.what());
      world.abort(why);
      if (run.on_late) run.on_late(why);
    }
    throw;
  }
}

// Processes see their own ranks only.
std::string blame(const HoldUps& who) {
  const auto say = [](const std::vector<int>& ranks, const char* why_one, const char* why_all) {
    return fmt::format("rank {} hold{} up the run: {}; ", fmt::join(ranks, ", "),
                       ranks.size() == 1 ? "s" : "", ranks.size() == 1 ? why_one : why_all);
  };
  if (!who.silent.empty()) return say(who.silent, "it gives no sign of life", "they give no sign of life");
  return who.busy.empty() ? "" : say(who.busy, "it waits for nobody", "they wait for nobody");
}

}  // namespace

RunResult train(const TrainingRun& run) {
  if (const auto problems =
          runtime_refuses(run.graph.model, run.graph.training, run.graph.plan, run.stack, run.kernels);
      !problems.empty())
    throw ConfigError(problems);
  if (run.documents_apart && !run.kernels.documents)
    throw ConfigError(Problem{
        "--packing", "", "apart", "across or within",
        fmt::format("the {} kernels do not keep the documents of a sequence apart yet", run.kernels.name)});
  const int ranks = run.graph.plan.world();
  if (run.carried && run.processes)
    throw ConfigError(Problem{"--comm", "", "ranks that are processes", "local",
                              "a run that changes its layout keeps its ranks in one process"});
  Shared shared;
  shared.result.measured.kind = TimelineKind::measured;
  shared.result.measured.graph_hash = graph_hash(run.graph);

  const auto require_ranks = [&](int started) {
    if (started != ranks)
      throw ConfigError(Problem{"", "plan", fmt::format("{} ranks", ranks),
                                fmt::format("{} ranks, as many as were started", started),
                                fmt::format("start it with: mpirun -n {} sextant run ..., or with as many "
                                            "processes of another launcher",
                                            ranks)});
  };
  std::vector<std::unique_ptr<Communicator>> world;
  if (run.tcp) {
    require_ranks(run.tcp->ranks);  // before anybody waits for ranks that will not come
    TcpWorld tcp = *run.tcp;
    tcp.stop = run.stop;
    world.push_back(make_tcp_world(tcp));
  } else if (run.processes) {
    world.push_back(start_mpi(run));
  } else {
    world = make_local_world(ranks);
  }
  require_ranks(world.front()->size());
  shared.result.first_rank = world.front()->rank() == 0;
  if (run.cuda)
    for (auto& communicator : world)
      communicator = run.processes ? connect_nccl(std::move(communicator), run.cuda->ordinal)
                                   : share_cuda_device(std::move(communicator), run.cuda->ordinal);
  if (run.shape) {
    const auto fabric = make_fabric(*run.shape, ranks, run.processes ? 1 : ranks, run.emulated);
    for (auto& communicator : world) communicator = make_shaped(std::move(communicator), fabric);
  }
  if (!run.expected.empty()) {
    WatchdogOptions options;
    options.floor = run.deadline_floor;
    options.on_late = [&](const std::string& seen) {
      const HoldUps who = world.front()->stalls();
      if (who.over) return;
      const std::string report = blame(who) + seen + who.states;
      const std::string verdict = report.substr(0, report.find('\n'));  // the lines about ranks are told once
      for (const auto& communicator : world) communicator->abort(verdict);
      if (run.on_late) run.on_late(report);
    };
    shared.watchdog = std::make_unique<Watchdog>(run.graph, run.expected, options);
    if (run.processes) world.front()->answer_with([dog = shared.watchdog.get()] { return dog->dump(); });
  }
  if (run.processes)
    train_process(run, *world.front(), shared);
  else
    run_ranks(world, [&](Communicator& communicator) { train_rank(run, communicator, shared); });

  // One representative rank per stage, as a predicted timeline has them.
  Timeline& measured = shared.result.measured;
  std::ranges::sort(measured.ranks, {}, &Timeline::RankSpans::rank);
  if (run.record) {
    measured.spans.resize(run.graph.ops.size());
    const RankGrid grid(run.graph.plan);
    std::vector<bool> seen(static_cast<std::size_t>(run.graph.plan.pp), false);
    for (const auto& rank : measured.ranks) {
      const int stage = grid.coord(rank.rank).pp;
      if (seen[static_cast<std::size_t>(stage)]) continue;
      seen[static_cast<std::size_t>(stage)] = true;
      for (OpId op = 0; op < run.graph.ops.size(); ++op)
        if (run.graph.ops[op].stage == stage) measured.spans[op] = rank.spans[op];
    }
    if (run.processes) share_spans(run.graph, *world.front(), measured.spans);
  }
  return std::move(shared.result);
}

}  // namespace sextant
