// A cost model that knows what was measured, and asks another about the rest.
#pragma once

#include "core/work_profile.hpp"
#include "cost_models/cost_model.hpp"

namespace sextant {

class ProfiledCostModel final : public CostModel {
 public:
  // Both outlive the model.
  ProfiledCostModel(const WorkProfile& profile, const CostModel& otherwise)
      : profile_(profile), otherwise_(otherwise) {}
  OpCost price(const Work&) const override;

 private:
  const WorkProfile& profile_;
  const CostModel& otherwise_;
};

}  // namespace sextant
