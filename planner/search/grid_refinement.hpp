// Is there a better layout off the search grid? The space lists layers that are recomputed, layers whose activations are on
// the host, how far ahead these are fetched back and the optimizer's share there (per cent) on ladders. From a member on
// they are moved off them, in ever smaller steps, one alone or two of which one makes room for the other, or together with
// another kind of recomputation, shard degree or bucket, for as long as the simulated step falls and the layout fits: a local
// search, which proves nothing.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/search/local_moves.hpp"

namespace sextant {

class GridRefinement {
 public:
  GridRefinement(const Job& job, const SearchSpace& space, const SearchTree& tree, MoveMeans means)
      : job_(job),
        space_(space),
        moves_(job, tree, std::move(means), {.batch = 4, .tried = 2, .fits_first = true}) {}

  // From a member of the space whose step is known; nothing when no move helps.
  std::optional<RefinedPlan> climb(const ParallelPlan& from, double step);
  std::uint64_t simulated() const { return moves_.simulated(); }

 private:
  const Job& job_;
  const SearchSpace& space_;
  LocalMoves moves_;
};

}  // namespace sextant
