// Is there a better cut into stages than the even and the balanced one? Single layers move from one model chunk to another
// for as long as the simulated step falls: a local search, which proves nothing. Its work is limited by counts, not by a
// clock, so that the same question has the same answer; where chunks and micro-batches are too many, it ends early.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/search_tree.hpp"

namespace sextant {

struct MovedLayers {
  ParallelPlan plan;
  double step = 0;  // seconds, simulated
};

class LayerMoves {
 public:
  // Called by many threads at once.
  struct Means {
    std::function<SearchCache&()> cache;                   // the calling thread's
    std::function<double(const ParallelPlan&)> simulated;  // seconds
    std::function<bool()> stopped;
  };
  LayerMoves(const Job& job, const SearchTree& tree, Means means)
      : job_(job), tree_(tree), means_(std::move(means)) {}

  // From a plan whose step is known; nothing when no move helps.
  std::optional<MovedLayers> climb(const ParallelPlan& from, double step);
  std::uint64_t simulated() const { return simulated_; }

 private:
  std::optional<MovedLayers> step_from(const MovedLayers& at);

  const Job& job_;
  const SearchTree& tree_;
  Means means_;
  double slots_left_ = 15e6;  // of all climbs: walked by bounds, and with their weight by simulations
  std::uint64_t simulated_ = 0;
};

}  // namespace sextant
