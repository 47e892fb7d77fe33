#include "planner/search/step_simulator.hpp"

#include <vector>

#include "planner/lowering/lower.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {

StepSimulator::StepSimulator(const Job& job, const SearchSpace& space)
    : job_(job), threads_([this, &space] {
        return PerThread{SearchCache(job_, space, shared_), {}, {}};
      }) {}

double StepSimulator::step_of(const ParallelPlan& plan) {
  PerThread& mine = threads_.local();
  lower_folded(job_.model, job_.training, mine.cache.links(plan), plan, job_.stack, mine.graph);
  const std::vector<OpCost> costs = price(mine.graph, job_.cost);
  return simulated_step(mine.graph, costs, simulate_options(job_, plan), mine.scratch).v;
}

void StepSimulator::limit_states() {
  if (shared_->state_bytes <= SearchCache::kMostStateBytes) return;
  shared_->states.clear();
  shared_->stages.clear();
  shared_->state_bytes = 0;
  for (PerThread& thread : threads_) thread.cache.forget_last_states();
}

}  // namespace sextant
