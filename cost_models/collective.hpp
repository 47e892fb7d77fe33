// How long does a collective take? Rings, trees over nodes and reduction in switches, over one node or several, under the
// protocol that is fastest for the message, as NCCL chooses: LL, LL128 or Simple. Alone on the machine, as nccl-tests
// measures it, a collective takes its protocol's latency, its start and its bytes; inside a training step ranks wait for
// each other as well. Everything about links comes with the GroupShape: the network's efficiency and hops are those of the
// cluster asked about. Ignores protocols between nodes (a hop there waits for its chunk under any) and other jobs' traffic.
#pragma once

#include "core/graph/work.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

// Source: NCCL's rings move (n-1)/n of the vector in n-1 steps, all-reduces twice that (nccl-tests, PERFORMANCE.md).
// `tp_hidden_share`: what the stack hides of a tensor-parallel collective. Units: bytes, seconds.
OpCost price_collective(const CollectiveWork&, const Machine&, double tp_hidden_share = 0.0);
OpCost price_transfer(const TransferWork&, const Machine&);

// The constants of a collective that nothing in a step delays.
CostConstants alone(CostConstants);

// Bytes that a rank moves, over the message: nccl-tests' factor from algorithm to bus bandwidth.
double bus_factor(CollectiveKind, int ranks);

}  // namespace sextant
