// Unequal shards of the optimizer's state, for ranks of which some update more slowly. Beside the space that is searched, whose
// shards are equal: they are tried on a layout that was found there.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/simulation/predict.hpp"

namespace sextant {

// Weights of shards whose ranks have these speeds, (0, 1], the fastest of them `most`: each as long as the others at its update,
// as far as whole numbers from 1 on go. Without a common divisor; empty where they are equal.
std::vector<int> balanced_weights(std::span<const double> speeds, int most);

// The plan with the weights that make its step shortest on the job's cluster: an update is done sooner, but unequal slices are
// exchanged at the pace of the largest, for which memory must have room. Nothing where that gains less than 1 %, or where unequal
// shards are not lawful or do not fit.
std::optional<ParallelPlan> with_balanced_shards(const Job&, ParallelPlan);

}  // namespace sextant
