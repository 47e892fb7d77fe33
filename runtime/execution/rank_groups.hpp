// With whom does this rank carry out an op? Makes, once and on all ranks together, every communicator that a graph's
// ops need: one for each kind of group on each lane, so that lanes never share one.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/graph/op_groups.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

class RankGroups {
 public:
  // Collective over `world`, whose size is the plan's.
  RankGroups(const ExecutionGraph&, Communicator& world);

  int stage() const { return stage_; }
  // nullptr when the op is this rank's alone. The op is one of its stage.
  Communicator* of(OpId) const;

 private:
  using Key = std::pair<std::uint32_t, std::uint32_t>;
  Key key(const Op&) const;

  const ExecutionGraph& graph_;
  int stage_ = 0;
  std::map<Key, std::unique_ptr<Communicator>> groups_;
};

}  // namespace sextant
