// When does each operation run on EVERY rank, when ranks differ? simulate() keeps one representative rank a stage; here
// each rank carries out its stage's ops, a collective starts when all ranks of its group have come to it, and a transfer
// joins the ranks with equal coordinates on both stages. With equal ranks the result is that of simulate(), exactly.
//
// Ignores that interference would differ between ranks: its lengthening is that of the representative.
#pragma once

#include <span>
#include <vector>

#include "planner/simulation/simulate.hpp"

namespace sextant {

struct RankTimeline {
  Seconds makespan;
  std::vector<Seconds> finish;  // by rank: end of its last op
  std::vector<Seconds> waited;  // by rank: spent in front of collectives for slower members of the group
  std::vector<Timeline::RankSpans> spans;  // of the ranks asked for
};

// `compute_factor` by rank (a 20 % slower device: 1.2), on blocks and updates; empty = 1. `record`: ranks whose spans are
// kept.
RankTimeline simulate_ranks(const ExecutionGraph&, std::span<const OpCost> by_work,
                            std::span<const double> compute_factor, const SimulateOptions& = {},
                            std::span<const int> record = {});

}  // namespace sextant
