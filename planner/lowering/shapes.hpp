// Everything about a layout that does not depend on the micro-batch: the works of its operations, interned once, and
// the sizes of its buffers.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "core/graph/parameter_layout.hpp"
#include "core/plan/plan_links.hpp"
#include "cost_models/memory.hpp"
#include "planner/lowering/emitter.hpp"

namespace sextant::lowering {

// What lower() was given, and what follows from it at once.
struct Context {
  const ModelSpec& model;
  const TrainingSpec& training;
  const PlanLinks& links;
  const ParallelPlan& plan;
  const StackSpec& stack;
  LocalShape local;
  ActivationBytes activation;
  StateBytes state;
  std::vector<LayerRange> ranges;  // layers of each model chunk
  int microbatches = 1;
  bool gradient_ring = false, parameter_ring = false, host_sums = false;
  int n_chunks() const { return plan.pp * plan.vp; }
  int stage_of(int chunk) const { return chunk % plan.pp; }

  bool ring_gradients() const { return gradient_ring; }
  bool ring_parameters() const { return parameter_ring; }
  bool sums_on_host() const { return host_sums; }
  bool gathers_again() const { return gathers_every_microbatch(plan, stack.rules); }
  // Units held at once when parameters are fetched unit by unit. With parameters on the host, a horizon of more or less than
  // the one layer that it is by default adds to what the stack fetches ahead.
  std::size_t unit_ring_count() const { return unit_ring_count(plan, stack.rules); }
  static std::size_t unit_ring_count(const ParallelPlan& plan, const StackRules& rules) {
    if (!plan.overlap_param_gather && !plan.parameter_offload) return 1;
    const int further = plan.parameter_offload ? plan.offload_horizon - 1 : 0;
    return static_cast<std::size_t>(std::max(1, rules.prefetch_blocks) + further) + 1;
  }
  // Places for gradients that are reduced in every micro-batch. DeepSpeed, which works module by module, takes a second one
  // only to reduce beside the backward pass (stage_1_and_2.py, stage3.py: double buffers with overlap_comm).
  std::size_t gradient_ring_count() const {
    return stack.rules.fetch_modules && !(overlaps_grad_reduce(plan, stack.rules) && plan.replicas() > 1) ? 1
                                                                                                          : 2;
  }
  // The bucket of an embedding that is its stage's head as well: with a ring, its gradients stay in a buffer of their own
  // until both are in. -1: none.
  int shared_bucket(const ParameterLayout&) const;
  // Of the partition that reduced gradients of a later micro-batch lie in.
  std::int64_t bytes_summed_apart(const ParameterLayout&) const;
  // What fetched units and gradients on their way take, all together.
  std::int64_t ring_bytes(const ParameterLayout&) const;
  // Bytes that the optimizer's update on the device takes beyond what rests all step long. What is there for the passes alone
  // (rings, parameters gathered for a whole pass, gradients that others need) has been freed by then, and is taken first.
  std::int64_t update_workspace(const ParameterLayout&) const;
  bool split_backward() const { return plan.schedule == PipelineSchedule::zero_bubble; }
  bool sp() const { return plan.sequence_parallel && plan.tp > 1; }
  bool norms_qk() const { return model.qk_norm != QkNorm::none; }
  bool sums_qk() const { return norms_over_ranks(model.qk_norm, plan.tp); }
  bool norms_after() const { return model.norm_placement == NormPlacement::after; }
  bool cp_ring() const { return plan.cp > 1 && stack.rules.cp_ring; }
  // Repeating the attention core sends keys and values round once more.
  bool rings_again() const {
    return cp_ring() && plan.recompute.kind == RecomputeKind::selective &&
           !stack.rules.selective_by_operation;
  }
};

Context make_context(const ModelSpec&, const TrainingSpec&, const PlanLinks&, const ParallelPlan&,
                     const StackSpec&);

// Ids of the works of one stage; index by pass where a block has several.
struct StageWorks {
  struct Block {
    std::array<WorkId, 6> by_pass{};  // index: Pass
    WorkId operator[](Pass pass) const { return by_pass[static_cast<std::size_t>(pass)]; }
  };
  std::array<Block, kBlockKindNames.size()> block{};  // index: BlockKind
  WorkId tp_gather = 0, tp_scatter = 0, tp_reduce = 0, loss_gather = 0;
  WorkId qk_reduce = 0;
  WorkId cp_gather = 0, cp_gather_backward = 0, cp_scatter = 0;
  WorkId send = 0;                   // to the next stage, and gradients back over the same link
  WorkId copy_out = 0, copy_in = 0;  // saved activations of one layer
  const Block& operator[](BlockKind kind) const { return block[static_cast<std::size_t>(kind)]; }
};
bool has_kind(const Context&, BlockKind);                       // whether the layout has such blocks
bool has_pass(const Context&, Pass);                            // whether the layout's blocks run it
std::vector<StageWorks> stage_works(Emitter&, const Context&);  // by PlanLinks::index()
// Its parts; `number` gives a work its id. Blocks are the same for all stages.
using NumberOfWork = std::function<WorkId(const Work&)>;
void add_block_works(const Context&, const NumberOfWork& number, StageWorks&);
// What depends on links: communication and copies.
void add_link_works(const Context&, const StageLinks&, const NumberOfWork& number, StageWorks&);

}  // namespace sextant::lowering
