// How long does a collective take, as it runs inside a training step? Ring, tree and in-switch reduction;
// inside one node and across nodes. Everything about links comes with the GroupShape. Ignores protocols (LL,
// LL128): below 1 MB the start-up term rules.
#pragma once

#include "core/work.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

OpCost price_collective(const CollectiveWork&, const Machine&, double tp_hidden_share = 0.0);
OpCost price_transfer(const TransferWork&, const Machine&);

// Bus bandwidth that a group reaches for large messages, by the nccl-tests convention.
BytesPerSecond bus_bandwidth(CollectiveKind, const GroupShape&, const Machine&);

}  // namespace sextant
