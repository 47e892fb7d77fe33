#include "planner/simulation/cost_shares.hpp"

namespace sextant {

CostShares cost_shares(const Breakdown& step, std::span<const OpCost> costs) {
  CostShares sum;  // seconds
  for (std::size_t w = 0; w < step.by_work.size(); ++w) {
    const CostSource source = costs[w].source;
    (source == CostSource::measured       ? sum.measured
     : source == CostSource::interpolated ? sum.interpolated
                                          : sum.analytic) += step.by_work[w];
  }
  const double all = sum.measured + sum.interpolated + sum.analytic;
  if (all <= 0) return {0, 0, 1};
  return {sum.measured / all, sum.interpolated / all, sum.analytic / all};
}

}  // namespace sextant
