// The closed-form cost model: device, stack and constants in, one duration per work out. No state, no
// allocation, safe to share between threads. Interference between overlapping works is the simulator's
// matter.
#pragma once

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/constants.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/kernels.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

class AnalyticCostModel final : public CostModel {
 public:
  AnalyticCostModel(const ClusterSpec&, const StackSpec&, const CostConstants&);
  // Constants of the cluster's device generation, from `preset_dir`/cost.
  AnalyticCostModel(const ClusterSpec&, const StackSpec&, const std::filesystem::path& preset_dir);

  OpCost price(const Work&) const override;
  OpCost price(const Kernel&) const;
  const Machine& machine() const { return machine_; }
  const StackSpec& stack() const { return stack_; }

 private:
  OpCost price_block(const BlockWork&) const;

  Machine machine_;
  StackSpec stack_;
};

// max(a, b) with a rounded corner: (a^p + b^p)^(1/p).
double smooth_max(double a, double b, double power);

}  // namespace sextant
