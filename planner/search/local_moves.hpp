// One step of a local search: of the layouts next to one, the fastest that was simulated. Its work is limited by counts, not
// by a clock, so that the same question has the same answer.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "planner/search/search_tree.hpp"

namespace sextant {

struct RefinedPlan {
  ParallelPlan plan;
  double step = 0;  // seconds, simulated
};

// Called by many threads at once.
struct MoveMeans {
  std::function<SearchCache&()> cache;                   // the calling thread's
  std::function<double(const ParallelPlan&)> simulated;  // seconds
  std::function<bool()> stopped;
};

class LocalMoves {
 public:
  struct Extent {
    std::size_t batch = 8;    // simulated together
    std::size_t tried = 3;    // batches without a gain
    bool fits_first = false;  // memory is asked of all, not of those simulated alone
  };
  LocalMoves(const Job& job, const SearchTree& tree, MoveMeans means, Extent extent)
      : job_(job), tree_(tree), means_(std::move(means)), extent_(extent) {}

  // Nothing when none is worth it, or when the work allowed is done.
  std::optional<RefinedPlan> fastest(const RefinedPlan& at, const std::vector<ParallelPlan>& next);

  bool stopped() const { return means_.stopped(); }
  std::uint64_t simulated() const { return simulated_; }
  // From now on.
  void allow(std::uint64_t simulations) { left_ = simulations; }
  std::uint64_t left() const { return left_; }
  void allow_slots() { slots_left_ = kSlots; }

 private:
  const Job& job_;
  const SearchTree& tree_;
  MoveMeans means_;
  Extent extent_;
  static constexpr double kSlots = 15e6;
  double slots_left_ = kSlots;  // walked by bounds, and with their weight by simulations
  std::uint64_t simulated_ = 0, left_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace sextant
