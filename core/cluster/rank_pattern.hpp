// Which ranks form the groups of a plan along some axes, block by block. Ranks are numbers in a mixed radix
// (one digit an axis, innermost first); a group fixes the digits outside its axes. When every digit's stride
// divides a block of ranks or is a multiple of it, shifting by a block maps groups onto groups, so that on a
// cluster which repeats itself with that block the groups of the first one stand for all. Internal to
// core/cluster.
#pragma once

#include <initializer_list>
#include <vector>

#include "core/cluster/rank_grid.hpp"

namespace sextant {

class RankPattern {
 public:
  // `period`: ranks after which the cluster repeats itself; 0 when it does not, then the block is the whole
  // world.
  RankPattern(const RankGrid&, std::initializer_list<Axis> axes, int stage, int period);

  int world() const { return world_; }
  int size() const { return size_; }               // ranks of one whole group
  int block() const { return block_; }             // ranks of the representative block
  int repeats() const { return repeats_; }         // blocks one group spans
  bool continues() const { return repeats_ > 1; }  // a group goes on beyond the block
  // First ranks of the groups in the block, ascending: of all stages, and of the stage asked for.
  const std::vector<int>& bases() const { return bases_; }
  const std::vector<int>& stage_bases() const { return stage_bases_; }
  // The ranks that one group has in the block, ascending.
  void members(int base, std::vector<int>& out) const;
  // Ranks of the stage: one representative per block position, with the true stage digit.
  const std::vector<int>& stage_ranks() const { return stage_ranks_; }

 private:
  int world_ = 1, size_ = 1, block_ = 1, repeats_ = 1;
  std::vector<int> offsets_, bases_, stage_bases_, stage_ranks_;
};

}  // namespace sextant
