// How long do passes over flat state take (Adam, norm, accumulate, clear), on the device or on the host, and
// copies between the two? All are bound by memory or by the host link.
#pragma once

#include "core/graph/work.hpp"
#include "core/plan/stack_spec.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

OpCost price_state(const StateWork&, const StackKernels&, const Machine&);
OpCost price_copy(const CopyWork&, const Machine&);

}  // namespace sextant
