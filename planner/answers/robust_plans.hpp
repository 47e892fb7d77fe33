// Which layouts bear a machine that varies best? Those that are fastest without jitter, and on a network as slow as jitter
// makes it, are ranked anew by their steps under it. The expected step is never below the undisturbed one (a step is convex
// in its durations, whose means jitter does not lower), so that the first layout left out bounds all the others; of the
// 90th percentile that is a rule of thumb.
#pragma once

#include "core/plan/rank_by.hpp"
#include "planner/search/search.hpp"

namespace sextant {

struct SteadyPlans {
  SearchReport report;  // `ranked` by the measure, with predictions of the expected step; the rest is of the
                        // search without jitter
  RankedPlan undisturbed;   // the best without jitter
  std::size_t sampled = 0;  // layouts
  bool proved = true;       // every other kind takes longer even without jitter
};
// Ranked by the undisturbed step, or without jitter in the cluster, it is search(). `options.top` layouts are ranked.
SteadyPlans robust_plans(const Job&, const SearchSpace&, RankBy, const SearchOptions& = {});

}  // namespace sextant
