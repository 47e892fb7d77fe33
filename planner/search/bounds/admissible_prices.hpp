// Prices under which bounds stay below every step that a calibration corrects. Used by search.cpp alone.
#pragma once

#include <cmath>

#include "planner/lowering/job.hpp"
#include "planner/simulation/residual.hpp"

namespace sextant {

// All prices times a factor.
class ScaledPrices final : public CostModel {
 public:
  ScaledPrices(const CostModel& base, double factor) : base_(base), factor_(factor) {}
  OpCost price(const Work& work) const override {
    OpCost cost = base_.price(work);
    for (Seconds* part : {&cost.duration, &cost.compute, &cost.memory, &cost.latency}) part->v *= factor_;
    return cost;
  }

 private:
  const CostModel& base_;
  double factor_;
};

// Bounds are made of prices alone. What a calibration learned of layouts scales a simulated step up or down; with the prices
// scaled by the least of these factors first, and every step by what is left of its own, no step falls below its bounds.
template <class Ask>
auto with_admissible_prices(const Job& job, const Ask& ask) {
  if (!job.residual) return ask(job);
  const double least = job.residual->least_log_factor(job.cluster.device.generation,
                                                      static_cast<double>(parameter_counts(job.model).total));
  const ScaledPrices prices(job.cost, std::exp(least));
  return ask(Job{job.model, job.training, job.cluster, job.topology, job.stack, prices, job.interval,
                 job.uncertainty, job.residual, least, job.profiled});
}

}  // namespace sextant
