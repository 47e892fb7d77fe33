// Is there a better cut into stages than the even and the balanced one? One with embedding and LM head alone in the outer chunks is
// tried, and single layers move from one model chunk to another for as long as the simulated step falls: a local search, which
// proves nothing; where chunks and micro-batches are too many, it ends early.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/search/local_moves.hpp"

namespace sextant {

class LayerMoves {
 public:
  LayerMoves(const Job& job, const SearchTree& tree, MoveMeans means)
      : job_(job), moves_(job, tree, std::move(means), {}) {}

  // From a plan whose step is known; nothing when no move helps.
  std::optional<RefinedPlan> climb(const ParallelPlan& from, double step);
  std::uint64_t simulated() const { return moves_.simulated(); }

 private:
  const Job& job_;
  LocalMoves moves_;
};

}  // namespace sextant
