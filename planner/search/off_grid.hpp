// Layouts that are no members of the space: off the search grid, and cut otherwise into stages.
#pragma once

#include <cstdint>

#include "planner/search/local_moves.hpp"
#include "planner/search/search_ranking.hpp"

namespace sextant {

inline constexpr int kMovedFamilies = 5;

struct OffGrid {
  Moved moved;
  std::uint64_t cut_anew = 0, refined = 0;  // simulated
};

// From the fastest families on, of those that a step off the search grid or a better cut may bring to the front.
OffGrid off_grid(const Job&, const SearchSpace&, const SearchTree&, const Ranking&, const MoveMeans&);

}  // namespace sextant
