// The simulated step of a plan of one search, asked by many threads at once: each has a cache and room of its own beside
// what all share. Internal to planner/search.
#pragma once

#include <memory>

#include <tbb/enumerable_thread_specific.h>

#include "core/plan/parallel_plan.hpp"
#include "planner/lowering/folded_graph.hpp"
#include "planner/lowering/job.hpp"
#include "planner/search/search_cache.hpp"
#include "planner/search/search_space.hpp"
#include "planner/simulation/simulate.hpp"

namespace sextant {

class StepSimulator {
 public:
  StepSimulator(const Job&, const SearchSpace&);

  SearchCache& cache() { return threads_.local().cache; }  // the calling thread's
  double step_of(const ParallelPlan&);                     // seconds
  // Between expansions only: what is remembered of states goes once it takes too much memory.
  void limit_states();

 private:
  struct PerThread {
    SearchCache cache;
    SimulateScratch scratch;
    FoldedGraph graph;
  };
  const Job& job_;
  std::shared_ptr<SearchCache::Shared> shared_ = SearchCache::make_shared();
  tbb::enumerable_thread_specific<PerThread> threads_;
};

}  // namespace sextant
