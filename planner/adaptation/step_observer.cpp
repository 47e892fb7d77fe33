#include "planner/adaptation/step_observer.hpp"

#include <algorithm>
#include <set>

#include "core/base/error.hpp"
#include "core/graph/op_groups.hpp"

namespace sextant {
namespace {

constexpr std::size_t kKept = 4;  // steps that may be incomplete at a time

}  // namespace

StepObserver::StepObserver(const ExecutionGraph& graph, std::vector<Seconds> sound, const Topology& topology,
                           int nodes)
    : graph_(graph),
      sound_(std::move(sound)),
      ranks_(graph.plan.world()),
      nodes_(nodes),
      own_(static_cast<std::size_t>(graph.plan.pp)) {
  SEXTANT_CHECK(sound_.size() == graph.ops.size(), "a time for each op");
  const RankGrid grid(graph.plan);
  for (int rank = 0; rank < ranks_; ++rank) at_.push_back(grid.coord(rank));
  for (OpId id = 0; id < graph.ops.size(); ++id) {
    const Op& op = graph.ops[id];
    if (computes_alone(op) && graph.lanes[op.lanes[0]].kind == LaneKind::compute)  // not on the host
      own_[op.stage].push_back(id);
    // The end of the step is one exchange by an op of each stage, and a few bytes.
    if (group_kind(op) == GroupKind::none || group_kind(op) == GroupKind::world || sound_[id].v <= 0)
      continue;
    std::set<std::vector<int>> groups;
    for (const RankCoord& at : at_)
      if (op.stage == at.pp && !left_out(graph.plan, op, at.dp))
        groups.insert(group_members(graph, grid, at, op));
    for (const std::vector<int>& ranks : groups) {
      std::set<int> crossed;
      for (const int rank : ranks) crossed.insert(topology.node_of(rank));
      if (crossed.size() > 1) exchanges_.push_back({id, ranks, {crossed.begin(), crossed.end()}});
    }
  }
}

void StepObserver::record(int rank, std::int64_t step, const std::vector<Span>& spans) {
  std::vector<float> durations(spans.size());
  for (std::size_t op = 0; op < spans.size(); ++op)
    durations[op] = static_cast<float>(spans[op].end - spans[op].start);
  const std::lock_guard lock(mutex_);
  Step& s = steps_[step];
  s.durations.resize(static_cast<std::size_t>(ranks_));
  s.durations[static_cast<std::size_t>(rank)] = std::move(durations);
  ++s.ranks;
  while (steps_.size() > kKept) steps_.erase(steps_.begin());
}

void StepObserver::step_took(std::int64_t step, Seconds took) {
  const std::lock_guard lock(mutex_);
  steps_[step].took = took;
}

std::optional<StepObservation> StepObserver::take() {
  Step whole;
  std::int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto first = std::ranges::find_if(
        steps_, [&](const auto& s) { return s.second.ranks == ranks_ && s.second.took.has_value(); });
    if (first == steps_.end()) return std::nullopt;
    number = first->first;
    whole = std::move(first->second);
    steps_.erase(steps_.begin(), std::next(first));
  }
  return judge(number, whole);
}

StepObservation StepObserver::judge(std::int64_t number, const Step& step) const {
  StepObservation seen{.step = number, .duration = *step.took, .compute = {}, .network = {}};
  const auto of = [&](int rank, OpId op) -> double {
    return step.durations[static_cast<std::size_t>(rank)][op];
  };
  for (int rank = 0; rank < ranks_; ++rank) {
    const RankCoord& at = at_[static_cast<std::size_t>(rank)];
    double measured = 0, sound = 0;
    for (const OpId op : own_[static_cast<std::size_t>(at.pp)])
      if (!left_out(graph_.plan, graph_.ops[op], at.dp)) measured += of(rank, op), sound += sound_[op].v;
    seen.compute.push_back(sound > 0 ? measured / sound : 1);
  }
  std::vector<double> measured(static_cast<std::size_t>(nodes_)), sound(static_cast<std::size_t>(nodes_));
  for (const Exchange& e : exchanges_) {
    double took = of(e.ranks.front(), e.op);  // those that came early have waited as well
    for (const int rank : e.ranks) took = std::min(took, of(rank, e.op));
    for (const int node : e.nodes)
      measured[static_cast<std::size_t>(node)] += took,
          sound[static_cast<std::size_t>(node)] += sound_[e.op].v;
  }
  for (std::size_t node = 0; node < measured.size(); ++node)
    seen.network.push_back(sound[node] > 0 ? measured[node] / sound[node] : 0);
  return seen;
}

}  // namespace sextant
