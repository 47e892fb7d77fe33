#include "profiler/profile_plan.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "core/base/error.hpp"
#include "profiler/sample_summary.hpp"

namespace sextant {
namespace {

constexpr std::int64_t kMostWarmSteps = 1000;

// Samples of every work, from all ranks.
class Samples {
 public:
  void add(WorkId work, double seconds) {
    const std::lock_guard lock(mutex_);
    by_work_[work].push_back(seconds);
  }
  // Of a repetition in which all members take part, the slowest counts.
  void add_slowest(WorkId work, int repetition, double seconds) {
    const std::lock_guard lock(mutex_);
    double& slowest = slowest_[{work, repetition}];
    slowest = std::max(slowest, seconds);
  }
  // Of a collective between stages, the rank that comes last counts: it waits for nobody.
  void add_last(WorkId work, std::int64_t step, double seconds) {
    const std::lock_guard lock(mutex_);
    double& least = last_.try_emplace({work, step}, seconds).first->second;
    least = std::min(least, seconds);
  }
  // Every process comes to have the samples of all, rank after rank. As rows of four numbers: the way the sample is
  // added, its work, its repetition or step, seconds.
  void share(Communicator& world) {
    std::vector<double> mine;
    for (const auto& [work, seconds] : by_work_)
      for (const double s : seconds) mine.insert(mine.end(), {0, static_cast<double>(work), 0, s});
    for (const auto& [key, s] : slowest_)
      mine.insert(mine.end(), {1, static_cast<double>(key.first), static_cast<double>(key.second), s});
    for (const auto& [key, s] : last_)
      mine.insert(mine.end(), {2, static_cast<double>(key.first), static_cast<double>(key.second), s});
    const auto ranks = static_cast<std::size_t>(world.size());
    std::vector<std::int64_t> bytes(ranks, 0);
    bytes[static_cast<std::size_t>(world.rank())] = static_cast<std::int64_t>(mine.size() * sizeof(double));
    const std::vector<std::int64_t> one(ranks, sizeof(std::int64_t));
    const std::int64_t own = bytes[static_cast<std::size_t>(world.rank())];
    world.all_gather(&own, bytes.data(), one, {});
    std::vector<double> all(static_cast<std::size_t>(std::reduce(bytes.begin(), bytes.end())) /
                            sizeof(double));
    world.all_gather(mine.data(), all.data(), bytes, {});
    by_work_.clear();
    slowest_.clear();
    last_.clear();
    for (std::size_t i = 0; i + 3 < all.size(); i += 4) {
      const auto work = static_cast<WorkId>(all[i + 1]);
      if (all[i] == 0) add(work, all[i + 3]);
      if (all[i] == 1) add_slowest(work, static_cast<int>(all[i + 2]), all[i + 3]);
      if (all[i] == 2) add_last(work, static_cast<std::int64_t>(all[i + 2]), all[i + 3]);
    }
  }
  void write(const ExecutionGraph& graph, WorkProfile& profile) {
    for (const auto& [key, value] : last_) by_work_[key.first].push_back(value);
    std::map<WorkId, std::vector<double>> alone;
    for (const auto& [key, seconds] : slowest_)
      if (key.second > 0) alone[key.first].push_back(seconds);
    for (const auto& [work, seconds] : alone) by_work_.try_emplace(work, seconds);
    for (const auto& [work, seconds] : by_work_) {
      const SampleSummary beside = summarize(seconds), by_itself = summarize(alone[work]);
      profile.works[work_key(graph.works[work])] = {.mean_us = 1e6 * beside.mean,
                                                    .median_us = 1e6 * beside.median,
                                                    .spread_us = 1e6 * beside.spread,
                                                    .alone_us = 1e6 * by_itself.mean,
                                                    .samples = beside.samples,
                                                    .outliers = beside.outliers};
    }
  }

 private:
  std::mutex mutex_;
  std::map<WorkId, std::vector<double>> by_work_;
  std::map<std::pair<WorkId, int>, double> slowest_;
  std::map<std::pair<WorkId, std::int64_t>, double> last_;  // by step
};

// The largest vector that any of these works needs, in bytes, on one rank.
std::int64_t bytes_of(const Work& work) {
  if (const auto* collective = std::get_if<CollectiveWork>(&work)) return collective->bytes.v;
  if (const auto* transfer = std::get_if<TransferWork>(&work)) return transfer->bytes.v;
  return 0;
}

// One call as the op makes it, on bytes that mean nothing.
void collective(const Work& work, Communicator& group, std::byte* from, std::byte* to, NativeStream stream) {
  if (const auto* transfer = std::get_if<TransferWork>(&work)) {
    if (group.rank() == 0) return group.send(from, transfer->bytes.v, 1, stream);
    return group.recv(to, transfer->bytes.v, 0, stream);
  }
  const auto& collective = std::get<CollectiveWork>(work);
  const std::int64_t floats = collective.bytes.v / 4;
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return group.all_reduce(from, to, floats, Dtype::fp32, Reduction::sum, stream);
    case CollectiveKind::reduce_scatter:
      return group.reduce_scatter(from, to, even_split(floats, group.size()), Dtype::fp32, Reduction::sum,
                                  stream);
    case CollectiveKind::all_gather: {
      const auto slices = even_split(floats, group.size());
      std::vector<std::int64_t> bytes;
      for (const std::int64_t n : slices) bytes.push_back(4 * n);
      return group.all_gather(from, to, bytes, stream);
    }
  }
}

// A vector that exchanges may read: sums of what memory happens to hold may take another time than sums of numbers.
Allocation zeros(Device& device, const KernelTable& kernels, StreamId stream, std::int64_t bytes) {
  Allocation memory(device, Space::device, Bytes(bytes));
  device.launch(stream, [&, data = memory.data()](NativeStream s) {
    kernels.zero({.x = {data, Dtype::fp32, 1, bytes / 4}, .stream = s});
  });
  device.synchronize(device.record(stream));
  return memory;
}

// Every distinct exchange of the graph once alone: the first op that needs it, on all ranks that it concerns. All meet on
// their streams first, so that on a GPU too none of them is timed waiting for the others.
void measure_collectives(RankTrainer& trainer, const ExecutionGraph& graph, const KernelTable& kernels,
                         int repetitions, Samples& samples) {
  std::map<WorkId, OpId> first;
  std::int64_t most = 0;
  for (OpId id = 0; id < graph.ops.size(); ++id)
    if (group_kind(graph.ops[id]) != GroupKind::none && first.emplace(graph.ops[id].work, id).second)
      most = std::max(most, bytes_of(graph.works[graph.ops[id].work]));
  if (first.empty()) return trainer.barrier();
  Device& device = trainer.device();
  const StreamId stream = device.create_stream("profile");
  const Allocation from = zeros(device, kernels, stream, most + 64),
                   to = zeros(device, kernels, stream, most + 64);
  for (const auto& [work, id] : first) {
    for (int r = 0; r < repetitions; ++r) {
      trainer.barrier();
      const bool all = group_kind(graph.ops[id]) == GroupKind::world;  // one op per stage, one group
      if (!all && !trainer.executor().view().mine(id)) continue;
      Communicator& group = *trainer.groups().of(id);
      device.launch(stream, [&](NativeStream s) { group.barrier(s); });
      const Event begin = device.record(stream);
      device.launch(stream, [&, &what = graph.works[work]](NativeStream s) {
        collective(what, group, from.data(), to.data(), s);
      });
      const Event end = device.record(stream);
      device.synchronize(end);
      samples.add_slowest(work, r, (*device.reached(end) - *device.reached(begin)).v);
    }
  }
  trainer.barrier();
}

}  // namespace

bool profile_plan(const TrainingRun& how, const ProfileOptions& options, WorkProfile& profile) {
  SEXTANT_CHECK(options.steps > 1 && options.repetitions > 1, "the first of each is dropped");
  Samples samples;
  TrainingRun run = how;
  run.record = true;
  run.steps = options.steps;
  // The first step that counts. Rank 0 decides behind a step, which no rank has left by then: the loss is a sum of all.
  const bool warms = options.warm_up.v > 0 && !run.processes;
  std::atomic<std::int64_t> first = warms ? std::numeric_limits<std::int64_t>::max() - options.steps : 1,
                            done = 0;
  Seconds worked{};
  if (warms) {
    run.steps = kMostWarmSteps + options.steps;
    run.time_to_stop = [&, asked = run.time_to_stop] {
      return (asked && asked()) || done >= first + options.steps - 1;
    };
  }
  run.expected.clear();
  run.timer = options.timer;
  run.on_start = [&](RankTrainer& trainer, int) {
    measure_collectives(trainer, run.graph, run.kernels, options.repetitions, samples);
  };
  run.on_end = nullptr;
  if (run.processes) run.on_end = [&](RankTrainer& trainer, int) { samples.share(trainer.all_ranks()); };
  const RankGrid grid(run.graph.plan);
  run.on_spans = [&](int rank, std::int64_t step, const std::vector<Span>& spans) {
    if (step < first) return;
    const RankCoord at = grid.coord(rank);
    for (OpId id = 0; id < run.graph.ops.size(); ++id) {
      const Op& op = run.graph.ops[id];
      const GroupKind kind = group_kind(op);
      if (op.stage != at.pp || kind == GroupKind::ends) continue;
      const double seconds = spans[id].end - spans[id].start;
      if (kind == GroupKind::world)
        samples.add_last(op.work, step, seconds);
      else
        samples.add(op.work, seconds);
    }
  };
  run.on_step = [&](const StepReport& report) {
    worked += report.duration;
    const std::int64_t next = report.step + 1;
    if (warms && next < first && (worked >= options.warm_up || next >= kMostWarmSteps)) first = next;
    done = next;
    if (options.progress)
      options.progress(next < first ? 0.0 : static_cast<double>(next - first + 1) / options.steps);
  };
  const bool first_rank = train(run).first_rank;
  samples.write(run.graph, profile);
  profile.ranks = std::max(profile.ranks, run.graph.plan.world());
  return first_rank;
}

}  // namespace sextant
