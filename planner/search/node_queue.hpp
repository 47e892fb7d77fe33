// Which part of the space is looked at next? The one of the least bound; of equal bounds the deeper one, then the first in the
// order of the space. Internal to planner/search.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/search/search_tree.hpp"

namespace sextant {

struct LeavesLater {
  bool operator()(const Node& a, const Node& b) const {
    if (a.bound != b.bound) return a.bound > b.bound;
    if (a.level != b.level) return a.level < b.level;
    return a.choice > b.choice;
  }
};

inline void sort_best_first(std::vector<Node>& nodes) {
  std::ranges::sort(nodes, [](const Node& a, const Node& b) { return LeavesLater{}(b, a); });
}

class NodeQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const Node& front() const { return heap_.front(); }
  const std::vector<Node>& nodes() const { return heap_; }  // in no order
  std::vector<Node> best_first() const {
    std::vector<Node> sorted = heap_;
    sort_best_first(sorted);
    return sorted;
  }

  void push(const Node& node) {
    heap_.push_back(node);
    std::ranges::push_heap(heap_, LeavesLater{});
  }
  Node pop() {
    std::ranges::pop_heap(heap_, LeavesLater{});
    const Node node = heap_.back();
    heap_.pop_back();
    return node;
  }
  void clear() { heap_.clear(); }
  // All of them, as a stack: the best is the last.
  std::vector<Node> take_best_last() {
    std::vector<Node> stack;
    stack.swap(heap_);
    std::ranges::sort(stack, LeavesLater{});
    return stack;
  }

 private:
  std::vector<Node> heap_;
};

}  // namespace sextant
