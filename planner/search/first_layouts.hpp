// Which layouts are simulated before the tree is walked? From the best divisions of the ranks on, members that a practitioner
// would try; then neighbours of the best. Their steps say from the start what is not worth a look, and a search that is
// stopped early has an answer. Internal to planner/search.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "planner/search/search_ranking.hpp"
#include "planner/search/search_space.hpp"
#include "planner/search/search_tree.hpp"

namespace sextant {

// What the first layouts need of the search. The first five are called by many threads at once.
struct SearchMeans {
  std::function<SearchCache&()> cache;  // the calling thread's
  std::function<Simulated(const Node&)> simulated;
  std::function<double()> threshold;  // seconds: no layout is of use whose bound is above
  std::function<bool()> stop_asked, guessed_enough;
  std::function<bool(const Node&)> useless;
  std::function<void(const Simulated&)> rank;
};

class FirstLayouts {
 public:
  FirstLayouts(const SearchSpace& space, const SearchTree& tree, const Ranking& ranking, SearchMeans means)
      : space_(space), tree_(tree), ranking_(ranking), means_(std::move(means)) {}

  void guess(const std::vector<Node>& divisions);  // the best first
  // From the best on, one field changed at a time for as long as that helps: those of the least bounds, one of a family.
  void climb();

 private:
  bool found() const { return !ranking_.empty(); }
  void make_room(std::vector<Choice>&) const;
  void simulate(std::vector<Node>&);
  void guess(std::span<const Node> divisions, SearchTree::Guess);

  const SearchSpace& space_;
  const SearchTree& tree_;
  const Ranking& ranking_;
  SearchMeans means_;
};

}  // namespace sextant
