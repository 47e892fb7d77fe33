// Members that were simulated before the tree came to them. Each has one outcome: that of the node it lies below, once that is
// visited; where the search stops before, it was simulated all the same.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>

#include "planner/search/search_tree.hpp"

namespace sextant {

class SimulatedAhead {
 public:
  void add(const Choice& c) { of_division_[division(c)].insert(c); }
  void visited(const Choice& c) {
    if (const auto found = of_division_.find(division(c)); found != of_division_.end())
      found->second.erase(c);
  }
  // How many of them are members of a node.
  std::uint64_t below(const Node&, const SearchSpace&, SearchCache&) const;

 private:
  using Division = std::array<std::uint8_t, 3>;
  static Division division(const Choice& c) { return {c.tp, c.cp, c.pp}; }
  std::map<Division, std::set<Choice>> of_division_;
};

}  // namespace sextant
