#include "runtime/training/training_run.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "runtime/training/rank_run.hpp"
#include "runtime/training/run_shared.hpp"

namespace sextant {
namespace {

// The first rank of the stage whose replica leaves no micro-batch out.
int representative(const ExecutionGraph& graph, int stage) {
  const RankGrid grid(graph.plan);
  int rank = 0;
  const auto stands_for_it = [&](const RankCoord& at) {
    return at.pp == stage &&
           microbatches_of(graph.plan, graph.training, at.dp) == microbatches(graph.plan, graph.training);
  };
  while (!stands_for_it(grid.coord(rank))) ++rank;
  return rank;
}

// The spans of every stage from the first of its ranks, on all processes: each has its own rank's.
void share_spans(const ExecutionGraph& graph, Communicator& world, std::vector<Span>& spans) {
  const int stage = RankGrid(graph.plan).coord(world.rank()).pp;
  const bool stands_for_it = representative(graph, stage) == world.rank();
  std::vector<double> times(2 * spans.size(), 0.0);
  for (std::size_t op = 0; op < spans.size() && stands_for_it; ++op)
    if (graph.ops[op].stage == stage) {
      times[2 * op] = spans[op].start;
      times[2 * op + 1] = spans[op].end;
    }
  world.all_reduce(times.data(), times.data(), static_cast<std::int64_t>(times.size()), Dtype::fp64,
                   Reduction::sum, {});
  for (std::size_t op = 0; op < spans.size(); ++op) spans[op] = {times[2 * op], times[2 * op + 1]};
}

// Processes answer others with what the watchdog of the run sees, as long as it is there.
class AnswersOf {
 public:
  AnswersOf(Communicator& world, const Watchdog& dog) : world_(world) {
    world_.answer_with([&dog] { return dog.dump(); });
  }
  ~AnswersOf() { world_.answer_with({}); }
  AnswersOf(const AnswersOf&) = delete;
  AnswersOf& operator=(const AnswersOf&) = delete;

 private:
  Communicator& world_;
};

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
void train_process(const TrainingRun& run, Communicator& world, RunShared& shared) {
  try {
    train_rank(run, world, shared);
  } catch (const Aborted&) {
    throw;  // RankLost too, where nothing was carried yet
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
std::string blame(const Stalls& who) {
  const auto say = [](const std::vector<int>& ranks, const char* why_one, const char* why_all) {
    return fmt::format("rank {} stall{} the run: {}; ", fmt::join(ranks, ", "), ranks.size() == 1 ? "s" : "",
                       ranks.size() == 1 ? why_one : why_all);
  };
  if (!who.silent.empty()) return say(who.silent, "it gives no sign of life", "they give no sign of life");
  return who.busy.empty() ? "" : say(who.busy, "it waits for nobody", "they wait for nobody");
}

}  // namespace

TcpWorld tcp_job(const TrainingRun& run) {
  TcpWorld job = *run.tcp;
  job.stop = run.stop;
  return job;
}

std::unique_ptr<Communicator> start_processes(const TrainingRun& run, bool outlives_ranks) {
  if (!run.tcp) return start_mpi(run);
  TcpWorld tcp = tcp_job(run);
  tcp.outlives_ranks = outlives_ranks;
  return make_tcp_world(tcp);
}

namespace {

void require_ranks(const TrainingRun& run, int started) {
  const int ranks = run.graph.plan.world();
  if (started != ranks)
    throw ConfigError(Problem{"", "plan", fmt::format("{} ranks", ranks),
                              fmt::format("{} ranks, as many as were started", started),
                              fmt::format("start it with: mpirun -n {} sextant run ..., or with as many "
                                          "processes of another launcher{}",
                                          ranks, run.cuda ? "" : "; --adapt plans for those there are")});
}

// The ranks of this process; collectives go over their devices, and over links of the stated shape.
std::vector<std::unique_ptr<Communicator>> make_world(const TrainingRun& run) {
  const int ranks = run.graph.plan.world();
  std::vector<std::unique_ptr<Communicator>> world;
  if (run.world) {
    world.push_back(everyone(*run.world));
  } else if (run.processes) {
    if (run.tcp) require_ranks(run, run.tcp->ranks);  // before anybody waits for ranks that will not come
    world.push_back(start_processes(run));
  } else {
    world = make_local_world(ranks);
  }
  require_ranks(run, world.front()->size());
  if (run.cuda && run.processes)
    world.front() = connect_nccl(std::move(world.front()), run.cuda->ordinal);
  else if (run.cuda)
    share_cuda_device(world, run.cuda->ordinal);
  if (run.shape) {
    const auto fabric = make_fabric(*run.shape, ranks, run.processes ? 1 : ranks, run.emulated);
    for (auto& communicator : world) communicator = make_shaped(std::move(communicator), fabric);
  }
  return world;
}

// Who is late is lost where the run goes on without it, and ends the run elsewhere. `world` outlives it.
std::unique_ptr<Watchdog> make_watchdog(const TrainingRun& run,
                                        const std::vector<std::unique_ptr<Communicator>>& world) {
  WatchdogOptions options;
  options.floor = run.deadline_floor;
  options.on_late = [&run, &world](const std::string& seen) {
    const Stalls who = world.front()->stalls();
    if (who.over) return;
    const std::string report = blame(who) + seen + who.states;
    if (run.regroup && !who.silent.empty() && world.front()->lose(who.silent, report)) return;
    const std::string verdict = report.substr(0, report.find('\n'));  // the lines about ranks are told once
    for (const auto& communicator : world) communicator->abort(verdict);
    if (run.on_late) run.on_late(report);
  };
  return std::make_unique<Watchdog>(run.graph, run.expected, options);
}

// One representative rank per stage, as a predicted timeline has them.
void take_spans_of_stages(const TrainingRun& run, Communicator& world, Timeline& measured) {
  measured.spans.resize(run.graph.ops.size());
  const RankGrid grid(run.graph.plan);
  for (const auto& rank : measured.ranks) {
    const int stage = grid.coord(rank.rank).pp;
    if (rank.rank != representative(run.graph, stage)) continue;
    for (OpId op = 0; op < run.graph.ops.size(); ++op)
      if (run.graph.ops[op].stage == stage) measured.spans[op] = rank.spans[op];
  }
  try {
    if (run.processes) share_spans(run.graph, world, measured.spans);
  } catch (const RankLost&) {  // all is done and saved; what is known of the others' operations stays behind
  }
}

}  // namespace

RunResult train(const TrainingRun& run) {
  if (const auto problems =
          runtime_refuses(run.graph.model, run.graph.training, run.graph.plan, run.stack, run.kernels);
      !problems.empty())
    throw ConfigError(problems);
  SEXTANT_CHECK(!run.carried || !run.processes || run.world,
                "layouts of processes follow each other in one world");
  RunShared shared;
  shared.result.measured.kind = TimelineKind::measured;
  shared.result.measured.graph_hash = graph_hash(run.graph);
  const std::vector<std::unique_ptr<Communicator>> world = make_world(run);
  shared.result.first_rank = world.front()->rank() == 0;
  std::optional<AnswersOf> answers;
  if (!run.expected.empty()) {
    shared.watchdog = make_watchdog(run, world);
    if (run.processes) answers.emplace(*world.front(), *shared.watchdog);
  }
  if (run.processes)
    train_process(run, *world.front(), shared);
  else
    run_ranks(world, [&](Communicator& communicator) { train_rank(run, communicator, shared); });
  if (shared.result.lost) return std::move(shared.result);

  Timeline& measured = shared.result.measured;
  std::ranges::sort(measured.ranks, {}, &Timeline::RankSpans::rank);
  if (run.record) take_spans_of_stages(run, *world.front(), measured);
  return std::move(shared.result);
}

}  // namespace sextant
