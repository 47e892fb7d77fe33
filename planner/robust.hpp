// How does a layout bear a machine that varies? Steps sampled under the cluster's jitter: every rank's compute varies by
// itself and the slowest of a stage counts; the network between nodes varies as a whole from step to step. Ignores
// correlation in time and jitter inside a node.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cluster_spec.hpp"
#include "core/parallel_plan.hpp"
#include "planner/job.hpp"
#include "planner/search.hpp"

namespace sextant {

struct RobustStep {
  Seconds mean, p50, p90;
  int samples = 0;
};

struct RobustOptions {
  int samples = 64;
  std::uint64_t seed = 1;
};

// Steps as a user measures them (measured_step). The same seed gives the same steps for every plan of the same stages.
RobustStep robust_step(const Job&, const ParallelPlan&, const JitterSpec&, const RobustOptions& = {});

// A prediction whose step is another: its interval and the rates follow.
Prediction with_step(Prediction, Seconds step);
// Of the expected step. Few samples may have a mean below the undisturbed step; the expected one is not.
Prediction expected(const Prediction& undisturbed, const RobustStep&);

enum class RobustMeasure : std::uint8_t { mean, p90 };

// Ranks the plans of a report anew; `slower` and ties follow. What jitter would move up from below the report's plans
// is not looked for: ask the search for more of them.
struct RobustPlan {
  RankedPlan plan;
  RobustStep step;
};
std::vector<RobustPlan> rank_robust(const Job&, const SearchReport&, const JitterSpec&, RobustMeasure,
                                    const RobustOptions& = {});

}  // namespace sextant
