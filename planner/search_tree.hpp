// The space as a tree: one group of fields is decided per level, and every node knows how many members lie below it.
// Expanding a node sorts its children into fates, or gives them a lower bound. Used by search.cpp alone.
//
//   degrees   tp, cp, pp (dp follows)            compute alone
//   placement micro-batch, class of axis orders  + tp and cp collectives, bubble at the deepest interleaving
//   kernels   SP, TP overlap, recompute          + what is recomputed; memory floor
//   pipeline  schedule, vp, stage split          + stages; memory floor
//   state     axis order, ZeRO, shards, offload  + update, gathers, reductions; memory floor
//   full      buckets, overlap                   everything
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "planner/bound.hpp"
#include "planner/search.hpp"
#include "planner/stage_split.hpp"

namespace sextant {

enum class Level : std::uint8_t { root, degrees, placement, kernels, pipeline, state, full };

struct Node {
  double bound = 0;  // seconds of the simulated step
  std::uint64_t members = 1;
  Choice choice;
  Level level = Level::root;
  std::uint8_t refined = 0;  // a full node whose slots have been walked
};

// What one thread remembers between expansions.
class TreeCache;

class SearchTree {
 public:
  SearchTree(const Job&, const SearchSpace&, Bytes memory_limit);
  ~SearchTree();

  struct Expansion {
    std::vector<Node> children;
    FateCounts fates;
    std::vector<FateExample> examples;
    std::uint64_t bounds = 0;
  };
  Node root() const;
  void expand(const Node&, TreeCache&, Expansion&) const;
  // A tighter bound of a full node, and whether it fits.
  void refine(Node&, TreeCache&, Expansion&) const;
  ParallelPlan plan(const Choice&, TreeCache&) const;
  std::shared_ptr<TreeCache> make_cache() const;

  const Job& job() const { return job_; }
  PlanLinks links(const Choice&, TreeCache&) const;

 private:
  friend class TreeCache;
  void expand_root(TreeCache&, Expansion&) const;
  void expand_degrees(const Node&, TreeCache&, Expansion&) const;
  void expand_placement(const Node&, TreeCache&, Expansion&) const;
  void expand_kernels(const Node&, TreeCache&, Expansion&) const;
  void expand_pipeline(const Node&, TreeCache&, Expansion&) const;
  void expand_state(const Node&, TreeCache&, Expansion&) const;
  bool fits(const Node&, ParallelPlan leanest, TreeCache&, Expansion&) const;
  bool lawful(const ParallelPlan&, std::uint64_t members, Expansion&) const;
  std::uint64_t below(Level) const;  // members below one child of that level, classes of orders apart

  const Job& job_;
  const SearchSpace& space_;
  Bytes memory_limit_;
};

}  // namespace sextant
