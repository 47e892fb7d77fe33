// On what does a predicted step rest? Of the time in which compute lanes run operations or wait for them, mean over
// stages: the share whose works were measured, that was interpolated between measured works, and that a model priced alone.
// Waiting for other stages (bubble, imbalance) is as long as what these do, and is left out; so is what the simulation
// does not know, stragglers and host.
#pragma once

#include <span>

#include "core/timeline/breakdown.hpp"
#include "cost_models/cost_model.hpp"

namespace sextant {

struct CostShares {
  double measured = 0, interpolated = 0, analytic = 0;  // they sum to 1
};

// Of a breakdown of the graph whose works cost so much: costs[WorkId].
CostShares cost_shares(const Breakdown&, std::span<const OpCost> costs);

}  // namespace sextant
