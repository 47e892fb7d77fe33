// How fast can a layout be at best? Lower bounds of the simulated step, cheap enough to leave most layouts of a space
// unsimulated. Never a second opinion about time: every term is the price of an operation that lower() emits, put where
// the operation cannot run earlier; tests/planner/bound_test.cpp holds that over random models, clusters and plans.
//
// What they leave out: waits inside a slot, most interference, contention between lanes.
#pragma once

#include <vector>

#include "core/pipeline_order.hpp"
#include "core/plan_links.hpp"
#include "planner/job.hpp"

namespace sextant {

// Seconds on the compute lane of one micro-batch, by part of the model. Depends on tp, cp, micro-batch, SP, TP overlap,
// kind of recompute, split backward, and the links of tp, cp and the next stage; not on ranks or stages otherwise.
struct LayerTimes {
  double forward = 0, recompute = 0, weight = 0;
  double backward = 0;        // of a layer whose activations were kept
  double backward_again = 0;  // of a recomputed one, without the repeated forward
  double embedding_forward = 0, embedding_backward = 0, residual = 0;
  double head_forward = 0, head_backward = 0, head_weight = 0;
  double send = 0;
  double slowed =
      0;  // a backward layer is at least that much longer for gathers beside it, from the second on

  double layer_total(bool recomputed) const {
    return forward + weight + (recomputed ? recompute + backward_again : backward);
  }
};
LayerTimes layer_times(const Job&, const ParallelPlan&,
                       const StageLinks*);  // without links: no communication

// The compute lane's time of each slot of the model's chunks.
struct PipelineTimes {
  int pp = 1, vp = 1, microbatches = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  bool beside = true;                             // transfers leave the compute lane free
  std::vector<double> forward, backward, weight;  // by model chunk
  std::vector<double> layer_backward;             // by model chunk: one layer, the least
  std::vector<double> send;                       // by stage: to the next one, and gradients back
};
PipelineTimes pipeline_times(const ParallelPlan&, const ModelSpec&, const StackSpec&, int microbatches,
                             const std::vector<LayerTimes>& by_stage);

// What parameters, gradients and optimizer state add to one stage.
struct StateTimes {
  double start = 0;                          // the compute lane is taken until here when the step begins
  std::vector<double> ready;                 // by chunk of the stage: its parameters are all there
  double per_forward = 0, per_backward = 0;  // added to every slot of the stage, spread over its chunks
  double lane_total = 0;                     // the busiest other lane, over the whole step
  double on_compute = 0;                     // reductions on the compute lane, once
  double on_compute_last = 0;                // those of them in the stage's last slot
  struct Reduction {
    std::uint16_t chunk = 0;   // of the stage
    std::uint16_t layers = 0;  // backward layers of that slot that come before it
    double seconds = 0;
  };
  std::vector<Reduction> beside;  // in order of readiness
  double last_beside = 0;         // the last of them
  double beside_total = 0;
};
std::vector<StateTimes> state_times(const Job&, const ParallelPlan&, const PlanLinks&);

// Time of the all-reduce that ends the step, 0 when the stack does not clip.
double closing_time(const Job&, const PlanLinks&);

// Closed form, O(pp): first micro-batch's arrival, the stage's own work, and the way back. `state` may be empty.
double closed_bound(const PipelineTimes&, const std::vector<StateTimes>& state, double closing);

// One pass over the slots of all stages: exact but for what happens inside a slot. `order` is merged_order() of the schedule.
double slot_bound(const PipelineTimes&, const std::vector<StateTimes>& state, double closing,
                  const std::vector<StageSlot>& order);

// All of it for one plan: what the tests compare with the simulator.
Seconds step_lower_bound(const Job&, const ParallelPlan&, const PlanLinks&);

}  // namespace sextant
