// The part of a graph that one stage's ranks carry out: which ops are theirs, on which lane, and which
// operation is certain to be over when another starts. Answers nothing about time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/graph/execution_graph.hpp"

namespace sextant {

class StageView {
 public:
  StageView(const ExecutionGraph&, int stage);

  int stage() const { return stage_; }
  const std::vector<OpId>& ops() const { return ops_; }  // in issue order
  // The op's lane of this stage; kNoLane when the op is another stage's. A transfer has one at either end.
  LaneId lane(OpId op) const { return lane_[op]; }
  bool mine(OpId op) const { return lane_[op] != kNoLane; }
  const std::vector<LaneId>& lanes() const { return lanes_; }  // those that are used

 private:
  int stage_;
  std::vector<OpId> ops_;
  std::vector<LaneId> lane_, lanes_;
};

// "Is over before": by dependencies and lane order, through other stages too. One clock per op, with an entry
// per lane of the stage: how many ops of that lane are over before the op starts.
class HappensBefore {
 public:
  HappensBefore(const ExecutionGraph&, const StageView&);

  int lanes() const { return n_lanes_; }
  int lane_index(OpId op) const { return lane_index_[op]; }        // of the stage's own ops, 0 .. lanes() - 1
  std::uint32_t position(OpId op) const { return position_[op]; }  // on its lane
  std::uint32_t over_before(OpId op, int lane_index) const {
    return clocks_[op * static_cast<std::size_t>(n_lanes_) + static_cast<std::size_t>(lane_index)];
  }
  // `a` is an op of the stage.
  bool operator()(OpId a, OpId b) const { return position_[a] < over_before(b, lane_index_[a]); }

 private:
  int n_lanes_;
  std::vector<int> lane_index_;  // -1: another stage's
  std::vector<std::uint32_t> position_, clocks_;
};

// A random order of all ops of all stages that dependencies and lanes allow; the same for the same seed. The
// sums over the world (norm_reduce), in which all stages meet, stay together at the end.
std::vector<OpId> random_topological_order(const ExecutionGraph&, std::uint64_t seed);

}  // namespace sextant
