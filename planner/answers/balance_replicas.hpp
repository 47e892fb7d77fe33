// Unequal micro-batches for replicas of which some are slower, or whose number does not divide the batch. Beside the space that
// is searched, whose replicas are alike: a layout found there is taken as a shape, and its replicas get what they can do.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "planner/simulation/predict.hpp"

namespace sextant {

// Of `total` micro-batches each replica's, at least one, so that the last is done soonest: replica r takes
// times[r] (its micro-batches + `filling`), in which a pipeline fills and empties. `total` is at least as many as there are.
std::vector<int> balanced_microbatches(std::span<const double> times, int total, double filling);

// The plan with the micro-batches that its replicas can do on the job's cluster; equally many where that is as good. Nothing
// where it is not lawful.
std::optional<ParallelPlan> balanced(const Job&, ParallelPlan);

// The fastest of the shapes with its replicas balanced, at their micro-batch or a smaller one, on as many whole replicas as the
// cluster has GPUs for. Its optimizer state is sharded at most: ZeRO 2 and 3 become 1. Nothing where none fits.
struct BalancedPlan {
  ParallelPlan plan;
  Prediction prediction;
};
std::optional<BalancedPlan> best_balanced(const Job&, std::span<const ParallelPlan> shapes);

}  // namespace sextant
