// How fast is one layout, how much memory does it need, and how sure is that? Lowering, pricing and one simulated step
// of the representative ranks, with what the simulator leaves to the stack: stragglers over nodes and fixed time per
// step. Intervals come from how far published runs of the same kind were off (planner/simulation/uncertainty.hpp). Ignores jitter
// (planner/simulation/robust.hpp).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/rejection.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/plan_links.hpp"
#include "core/plan/rank_by.hpp"
#include "core/timeline/breakdown.hpp"
#include "planner/lowering/job.hpp"
#include "planner/simulation/cost_shares.hpp"
#include "planner/simulation/simulate.hpp"
#include "planner/simulation/uncertainty.hpp"

namespace sextant {

// What the heaviest stage needs (StageMemory::needed), and its host.
struct PlanMemory {
  Bytes peak, host;
  Bytes host_of_node;  // of as many such ranks as a node has, with what the framework takes beyond it
  int stage = 0;
  std::string largest;  // category that holds most there
};
PlanMemory plan_memory(const Job&, const ParallelPlan&);
// Share of a node's host memory that a layout may fill: the system, the loaders of data and the frameworks' own processes need the
// rest. An assumption; no measured run tells it.
inline constexpr double kHostShare = 0.8;

// Sampled steps under the cluster's jitter (planner/simulation/robust.hpp), and the one without.
struct JitteredStep {
  Seconds undisturbed, p05, p90, p95;
  int samples = 0;
};

struct Prediction {
  Seconds step, step_lower, step_upper;  // the interval holds nine of ten measured runs like this one
  std::optional<JitteredStep> jitter;    // then `step` is the expected one, and the interval has its spread
  double tokens_per_s = 0, tokens_per_s_gpu = 0;
  double model_tflops_gpu = 0;
  double mfu = 0;            // against the dense 16-bit peak, attention in full
  double mfu_causal = 0;     // half of the attention counted
  double exposed_share = 0;  // of the step: what collectives, transfers and copies lengthen it by
  PlanMemory memory;
  Bytes memory_lower, memory_upper;  // interval of the peak
  Bytes memory_available;
  bool fits = false;
  double chance_of_overflow = 0;                          // that it does not fit, [0, 1]
  UncertaintyClass uncertainty = UncertaintyClass::none;  // why the intervals are as wide as they are
  double step_half_width = 0;                // relative, of the step's, before calibration and jitter
  double usd_per_million_tokens = 0;         // 0 when the device has no price
  std::optional<CostShares> predicted_from;  // of a profiled job: what of the simulated step was measured
};

// The plan must be lawful for model, batch and stack. `interval` widens both intervals: above 1 for a software stack
// known by its class alone.
Prediction predict(const Job&, const ParallelPlan&, double interval = 1.0);

// The interval [step / (1 + u), step (1 + u)], u the relative half width of what the model may be off; with the spread of
// jitter where the step has it. Both are taken as independent and lognormal, so that their logarithms add in squares.
void set_step_interval(Prediction&, double half_width);

// The step that layouts are ranked by. Without jitter all three are the same.
Seconds ranked_step(const Prediction&, RankBy);

// Where the undisturbed step of the representative ranks goes, without stragglers and host.
Breakdown step_breakdown(const Job&, const ParallelPlan&);
// Seconds of the step by part, jitter, stragglers and host among them; they sum to it.
std::map<std::string, double> step_parts(const TimeSplit& mean, const Prediction&);

// From the simulator's makespan to the step a user measures: stragglers and fixed host time. Increasing.
Seconds measured_step(const Job&, const ParallelPlan&, Seconds simulated);
// The simulated step that a user measures as `step` on so many GPUs of the job.
Seconds simulated_of(const Job&, int gpus, Seconds step);

// How the simulator is run for this job's stack and the plan's ranks (slow devices).
SimulateOptions simulate_options(const Job&, const ParallelPlan&);
// By stage, how many times as long compute takes as on a whole GPU: that of its slowest, whose share of the most micro-batches
// is its factor where replicas have unequally many; exchanges are those of the replica with the most. Empty when none is slower.
std::vector<double> stage_compute_factors(const Job&, const ParallelPlan&);
// The same of updates: that of its slowest, whose share of the largest slice is its factor where shards are unequal. Empty where
// they are those on compute.
std::vector<double> stage_update_factors(const Job&, const ParallelPlan&);

// Why the layout is not possible for model, batch (both valid) or stack; memory is not looked at.
std::optional<Rejection> unlawful(const Job&, const ParallelPlan&);
std::optional<RejectReason> unlawful_reason(const Job&, const ParallelPlan&);  // without its text
std::optional<Rejection> too_large(const Job&, const PlanMemory&);

}  // namespace sextant
