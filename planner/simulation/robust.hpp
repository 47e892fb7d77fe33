// How does a layout bear a machine that varies? Steps sampled under the cluster's jitter: every rank's compute varies by
// itself and the slowest of a stage counts; the network between nodes varies as a whole from step to step. Ignores
// correlation in time and jitter inside a node.
#pragma once

#include <cstdint>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/lowering/job.hpp"
#include "planner/simulation/predict.hpp"

namespace sextant {

struct RobustStep {
  Seconds mean, p05, p50, p90, p95;
  int samples = 0;
};

struct RobustOptions {
  int samples = 64;
  std::uint64_t seed = 1;
};

// Steps as a user measures them (measured_step). The same seed gives the same steps for every plan of the same stages.
RobustStep robust_step(const Job&, const ParallelPlan&, const JitterSpec&, const RobustOptions& = {});

// Of the expected step: rates follow, and the interval holds the spread of jitter beside what the model may be off. Few
// samples may have a mean below the undisturbed step; the expected one is not.
Prediction expected(const Prediction& undisturbed, const RobustStep&);

// predict(), of the expected step where the cluster states jitter and layouts are ranked under it.
Prediction predict_under(const Job&, const ParallelPlan&, RankBy);

}  // namespace sextant
