#include "cost_models/profiled.hpp"

namespace sextant {

OpCost ProfiledCostModel::price(const Work& work) const {
  const auto found = profile_.works.find(work_key(work));
  if (found == profile_.works.end()) return otherwise_.price(work);
  OpCost cost;
  cost.duration = Seconds(found->second.mean_us * 1e-6);
  cost.source = CostSource::measured;
  return cost;
}

}  // namespace sextant
