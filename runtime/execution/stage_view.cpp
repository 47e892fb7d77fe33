#include "runtime/execution/stage_view.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/base/error.hpp"

namespace sextant {

StageView::StageView(const ExecutionGraph& graph, int stage)
    : stage_(stage), lane_(graph.ops.size(), kNoLane) {
  std::vector<bool> used(graph.lanes.size(), false);
  for (OpId id = 0; id < graph.ops.size(); ++id)
    for (const LaneId lane : graph.ops[id].lanes) {
      if (lane == kNoLane || graph.lanes[lane].stage != stage) continue;
      SEXTANT_CHECK(lane_[id] == kNoLane, "a transfer joins two stages");
      lane_[id] = lane;
      ops_.push_back(id);
      used[lane] = true;
    }
  for (std::size_t lane = 0; lane < used.size(); ++lane)
    if (used[lane]) lanes_.push_back(static_cast<LaneId>(lane));
}

HappensBefore::HappensBefore(const ExecutionGraph& graph, const StageView& view)
    : n_lanes_(static_cast<int>(view.lanes().size())),
      lane_index_(graph.ops.size(), -1),
      position_(graph.ops.size(), 0),
      clocks_(graph.ops.size() * view.lanes().size(), 0) {
  const auto width = view.lanes().size();
  std::vector<int> index_of(graph.lanes.size(), -1);
  for (std::size_t i = 0; i < width; ++i) index_of[view.lanes()[i]] = static_cast<int>(i);

  constexpr OpId kNone = std::numeric_limits<OpId>::max();
  std::vector<OpId> last(graph.lanes.size(), kNone);
  std::vector<std::uint32_t> count(width, 0);
  for (OpId id = 0; id < graph.ops.size(); ++id) {
    auto* clock = clocks_.data() + id * width;
    const auto follow = [&](OpId before) {
      const auto* other = clocks_.data() + before * width;
      for (std::size_t l = 0; l < width; ++l) clock[l] = std::max(clock[l], other[l]);
      if (const int l = lane_index_[before]; l >= 0)
        clock[static_cast<std::size_t>(l)] =
            std::max(clock[static_cast<std::size_t>(l)], position_[before] + 1);
    };
    for (const OpId dep : graph.deps_of(graph.ops[id])) follow(dep);
    for (const LaneId lane : graph.ops[id].lanes) {
      if (lane == kNoLane) continue;
      if (last[lane] != kNone) follow(last[lane]);
      last[lane] = id;
    }
    if (view.mine(id)) {
      lane_index_[id] = index_of[view.lane(id)];
      position_[id] = count[static_cast<std::size_t>(lane_index_[id])]++;
    }
  }
}

std::vector<OpId> random_topological_order(const ExecutionGraph& graph, std::uint64_t seed) {
  const auto n = graph.ops.size();
  std::vector<std::vector<OpId>> followers(n);
  std::vector<int> waits(n, 0);
  std::vector<std::int64_t> last(graph.lanes.size(), -1);
  for (OpId id = 0; id < n; ++id) {
    const auto after = [&](OpId before) {
      followers[before].push_back(id);
      ++waits[id];
    };
    for (const OpId dep : graph.deps_of(graph.ops[id])) after(dep);
    for (const LaneId lane : graph.ops[id].lanes) {
      if (lane == kNoLane) continue;
      if (last[lane] >= 0) after(static_cast<OpId>(last[lane]));
      last[lane] = id;
    }
  }
  // Lanes run ahead or fall behind by orders of magnitude, as lanes do that nothing holds together.
  std::mt19937_64 random(seed);
  std::vector<double> eagerness(graph.lanes.size());
  std::uniform_real_distribution<double> exponent(-8.0, 8.0);
  for (auto& e : eagerness) e = std::exp(exponent(random));
  std::vector<OpId> ready, meetings, order;
  const auto add = [&](OpId id) {
    (graph.ops[id].role == OpRole::norm_reduce ? meetings : ready).push_back(id);
  };
  for (OpId id = 0; id < n; ++id)
    if (waits[id] == 0) add(id);
  while (!ready.empty() || !meetings.empty()) {
    auto& from = ready.empty() ? meetings : ready;
    std::vector<double> weights;
    for (const OpId id : from) weights.push_back(eagerness[graph.ops[id].lanes[0]]);
    const auto pick = std::discrete_distribution<std::size_t>(weights.begin(), weights.end())(random);
    std::swap(from[pick], from.back());
    const OpId id = from.back();
    from.pop_back();
    order.push_back(id);
    for (const OpId next : followers[id])
      if (--waits[next] == 0) add(next);
  }
  SEXTANT_CHECK(order.size() == n, "the graph has no circle");
  return order;
}

}  // namespace sextant
