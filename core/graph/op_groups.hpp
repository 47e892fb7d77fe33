// With whom does a rank carry out an op? A graph has the ops of one representative rank per stage; here are the ranks that
// meet in each of them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cluster/rank_grid.hpp"
#include "core/graph/execution_graph.hpp"

namespace sextant {

enum class GroupKind : std::uint8_t { none, tp, cp, shard, replica, world, ends };

// shard: consecutive replicas (ranks along cp, then dp) that split a bucket; replica: those that hold the same slice;
// ends: the sending rank (0) and the receiving one (1) of a transfer, first and last stage of a tied exchange.
GroupKind group_kind(const Op&);

// A replica with fewer micro-batches than the graph's leaves out the ops of the later ones; all ranks of a replica alike, so
// that nobody waits. What all replicas do together belongs to no micro-batch then (ZeRO 0 and 1).
bool left_out(const ParallelPlan&, const Op&, int replica);

// What a rank computes by itself: neither an exchange nor a copy over its host link.
bool computes_alone(const Op&);

// Its work is said of the largest slice: a rank that owns a smaller one has less of it (shares_of_largest()).
bool works_on_slice(const Op&);

// The ranks of the op's group through `self`, in rank order along its axes; empty when the op is a rank's own.
std::vector<int> group_members(const ExecutionGraph&, const RankGrid&, const RankCoord& self, const Op&);

}  // namespace sextant
