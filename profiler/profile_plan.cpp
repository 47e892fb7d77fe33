#include "profiler/profile_plan.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>

#include "core/error.hpp"

namespace sextant {
namespace {

using Clock = std::chrono::steady_clock;

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
  void write(const ExecutionGraph& graph, WorkProfile& profile) {
    for (const auto& [key, value] : last_) by_work_[key.first].push_back(value);
    std::map<WorkId, std::vector<double>> alone;
    for (const auto& [key, seconds] : slowest_)
      if (key.second > 0) alone[key.first].push_back(seconds);
    for (const auto& [work, seconds] : alone) by_work_.try_emplace(work, seconds);
    for (auto& [work, seconds] : by_work_) {
      std::ranges::sort(seconds);
      const auto at = [&values = seconds](double share) {
        return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
      };
      const auto mean_us = [](const std::vector<double>& v) {
        return v.empty() ? 0.0
                         : 1e6 * std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
      };
      profile.works[work_key(graph.works[work])] = {.mean_us = mean_us(seconds),
                                                    .median_us = 1e6 * at(0.5),
                                                    .spread_us = 1e6 * (at(0.75) - at(0.25)),
                                                    .alone_us = mean_us(alone[work]),
                                                    .samples = static_cast<int>(seconds.size())};
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
void exchange(const Work& work, Communicator& group, std::byte* from, std::byte* to) {
  if (const auto* transfer = std::get_if<TransferWork>(&work)) {
    if (group.rank() == 0) return group.send(from, transfer->bytes.v, 1, {});
    return group.recv(to, transfer->bytes.v, 0, {});
  }
  const auto& collective = std::get<CollectiveWork>(work);
  const std::int64_t floats = collective.bytes.v / 4;
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return group.all_reduce(from, to, floats, Dtype::fp32, Reduction::sum, {});
    case CollectiveKind::reduce_scatter:
      return group.reduce_scatter(from, to, even_split(floats, group.size()), Dtype::fp32, Reduction::sum,
                                  {});
    case CollectiveKind::all_gather: {
      const auto slices = even_split(floats, group.size());
      std::vector<std::int64_t> bytes;
      for (const std::int64_t n : slices) bytes.push_back(4 * n);
      return group.all_gather(from, to, bytes, {});
    }
  }
}

// Every distinct exchange of the graph once alone: the first op that needs it, on all ranks that it concerns.
void measure_exchanges(RankTrainer& trainer, const ExecutionGraph& graph, int repetitions, Samples& samples) {
  std::map<WorkId, OpId> first;
  std::int64_t most = 0;
  for (OpId id = 0; id < graph.ops.size(); ++id)
    if (group_kind(graph.ops[id]) != GroupKind::none && first.emplace(graph.ops[id].work, id).second)
      most = std::max(most, bytes_of(graph.works[graph.ops[id].work]));
  std::vector<std::byte> from(static_cast<std::size_t>(most) + 64), to(from.size());
  for (const auto& [work, id] : first) {
    for (int r = 0; r < repetitions; ++r) {
      trainer.barrier();
      const bool all = group_kind(graph.ops[id]) == GroupKind::world;  // one op per stage, one group
      if (!all && !trainer.executor().view().mine(id)) continue;
      Communicator& group = *trainer.groups().of(id);
      group.barrier({});
      const auto start = Clock::now();
      exchange(graph.works[work], group, from.data(), to.data());
      samples.add_slowest(work, r, std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  trainer.barrier();
}

}  // namespace

void profile_plan(const TrainingRun& how, const ProfileOptions& options, WorkProfile& profile) {
  SEXTANT_CHECK(options.steps > 1 && options.repetitions > 1, "the first of each is dropped");
  Samples samples;
  TrainingRun run = how;
  run.record = true;
  run.steps = options.steps;
  run.expected.clear();
  run.on_start = [&](RankTrainer& trainer, int) {
    measure_exchanges(trainer, run.graph, options.repetitions, samples);
  };
  run.on_end = nullptr;
  const RankGrid grid(run.graph.plan);
  run.on_spans = [&](int rank, std::int64_t step, const std::vector<Span>& spans) {
    if (step == 0) return;
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
  run.on_step = [&](const StepReport& report, const RankTrainer&) {
    if (options.progress) options.progress(static_cast<double>(report.step + 1) / options.steps);
  };
  train(run);
  samples.write(run.graph, profile);
  profile.ranks = std::max(profile.ranks, run.graph.plan.world());
}

}  // namespace sextant
