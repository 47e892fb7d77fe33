#include "planner/adaptation/step_observer.hpp"

#include <algorithm>
#include <cmath>
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
      own_(static_cast<std::size_t>(graph.plan.pp)),
      collectives_of_(static_cast<std::size_t>(ranks_)) {
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
      if (crossed.size() < 2) continue;
      for (const int rank : ranks)
        collectives_of_[static_cast<std::size_t>(rank)].push_back(collectives_.size());
      collectives_.push_back({id, {crossed.begin(), crossed.end()}});
    }
  }
}

void StepView::add(const StepView& of_others) {
  for (std::size_t i = 0; i < compute.size(); ++i) compute[i] = std::max(compute[i], of_others.compute[i]);
  for (std::size_t i = 0; i < collectives.size(); ++i)  // those that came early have waited as well
    collectives[i] = std::min(collectives[i], of_others.collectives[i]);
}

StepView StepObserver::view(int rank, const std::vector<Span>& spans) const {
  StepView seen{.compute = std::vector<double>(static_cast<std::size_t>(ranks_)),
                .collectives = std::vector<double>(collectives_.size(), INFINITY)};
  const auto took = [&](OpId op) { return spans[op].end - spans[op].start; };
  const RankCoord& at = at_[static_cast<std::size_t>(rank)];
  const double owned = shares_of_largest(graph_.plan)[static_cast<std::size_t>(shard_of(graph_.plan, at))];
  double measured = 0, sound = 0;
  for (const OpId op : own_[static_cast<std::size_t>(at.pp)])
    if (!left_out(graph_.plan, graph_.ops[op], at.dp)) {
      measured += took(op);
      sound += sound_[op].v * (works_on_slice(graph_.ops[op]) ? owned : 1.0);
    }
  seen.compute[static_cast<std::size_t>(rank)] = sound > 0 ? measured / sound : 1;
  for (const std::size_t e : collectives_of_[static_cast<std::size_t>(rank)])
    seen.collectives[e] = took(collectives_[e].op);
  return seen;
}

void StepObserver::add(std::int64_t step, const StepView& seen, int ranks) {
  const std::lock_guard lock(mutex_);
  Step& s = steps_[step];
  if (s.ranks == 0)
    s.view = seen;
  else
    s.view.add(seen);
  s.ranks += ranks;
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
  StepObservation seen{.step = number, .duration = *step.took, .compute = step.view.compute, .network = {}};
  std::vector<double> measured(static_cast<std::size_t>(nodes_)), sound(static_cast<std::size_t>(nodes_));
  for (std::size_t e = 0; e < collectives_.size(); ++e)
    for (const int node : collectives_[e].nodes) {
      measured[static_cast<std::size_t>(node)] += step.view.collectives[e];
      sound[static_cast<std::size_t>(node)] += sound_[collectives_[e].op].v;
    }
  for (std::size_t node = 0; node < measured.size(); ++node)
    seen.network.push_back(sound[node] > 0 ? measured[node] / sound[node] : 0);
  return seen;
}

}  // namespace sextant
