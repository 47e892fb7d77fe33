// What does the same job do on more or fewer GPUs of the same kind? One exact search per size: the scaling curve, the
// fewest GPUs that hold a deadline, the cheapest tokens. And on one size: the trade of time against memory.
#pragma once

#include <optional>
#include <vector>

#include "planner/search.hpp"

namespace sextant {

struct ScalePoint {
  int gpus = 0;
  SearchReport report;    // empty ranking: nothing fits
  double efficiency = 0;  // tokens/s/GPU relative to the smallest size that fits
};

// Whole nodes of the job's cluster are added or left out; defects stay where they are.
std::vector<ScalePoint> scaling_curve(const Job&, const std::vector<int>& gpus, const PlanLimits&,
                                      const SearchOptions& = {});

// The smallest size, in whole nodes (or divisors of one node), whose best plan takes at most `deadline` a step; nothing
// when `most` GPUs do not suffice. Without a deadline: the fewest GPUs on which anything fits.
std::optional<ScalePoint> fewest_gpus(const Job&, std::optional<Seconds> deadline, int most,
                                      const PlanLimits&, const SearchOptions& = {});

// Of the sizes given, the one whose best plan costs least per token. Needs a price in the cluster's device.
std::optional<ScalePoint> cheapest_tokens(const Job&, const std::vector<int>& gpus, const PlanLimits&,
                                          const SearchOptions& = {});

// From the fastest plan on, each time the fastest one that needs at least `step` (a share) less memory than the one
// before, until nothing fits. The last one is the leanest to within `step`.
std::vector<RankedPlan> pareto_front(const Job&, const SearchSpace&, const SearchOptions& = {},
                                     double step = 0.02);

}  // namespace sextant
