#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <boost/container/static_vector.hpp>

#include "core/graph/parameter_layout.hpp"
#include "planner/lowering/shapes.hpp"
#include "planner/search/bounds/bound.hpp"

namespace sextant {
namespace {

using lowering::Context;
using lowering::StageWorks;

// Works of one stage by the ids that they get here; priced when asked for.
class Priced {
 public:
  explicit Priced(const CostModel& cost) : cost_(cost) {}
  WorkId number(const Work& work) {
    works_.push_back(work);
    return static_cast<WorkId>(works_.size() - 1);
  }
  double of(WorkId id) const { return cost_.price(works_[id]).duration.v; }

 private:
  const CostModel& cost_;
  boost::container::static_vector<Work, 48> works_;  // 9 kinds of block in 5 passes, or 11 over links
};

// As far as the works of a stage look at it.
Context without_stages(const Job& job, const ParallelPlan& plan) {
  static const PlanLinks kNone;
  return {job.model,
          job.training,
          kNone,
          plan,
          job.stack,
          local_shape(job.model, plan.tp, job.stack.rules.vocab_multiple),
          activation_bytes(job.model, job.training, plan, job.stack),
          {},
          {}};
}

}  // namespace

BlockTimes block_times(const Job& job, const ParallelPlan& plan) {
  const Context c = without_stages(job, plan);
  Priced priced(job.cost);
  StageWorks w;
  lowering::add_block_works(
      c, [&](const Work& work) { return priced.number(work); }, w);
  BlockTimes t;
  for (std::size_t kind = 0; kind < t.by_kind.size(); ++kind)
    for (std::size_t pass = 1; pass < t.by_kind[kind].size(); ++pass)
      if (lowering::has_kind(c, static_cast<BlockKind>(kind)) &&
          lowering::has_pass(c, static_cast<Pass>(pass)))
        t.by_kind[kind][pass] = priced.of(w.block[kind].by_pass[pass]);
  // With norms behind the GEMMs nothing is pending where a chunk ends.
  if (c.norms_after())
    t.by_kind[static_cast<std::size_t>(BlockKind::residual)][static_cast<std::size_t>(Pass::forward)] = 0;
  return t;
}

BlockTimes BlockTimes::slower(double factor) const {
  BlockTimes t = *this;
  for (auto& passes : t.by_kind)
    for (double& time : passes) time *= factor;
  return t;
}

LinkTimes link_times(const Job& job, const ParallelPlan& plan, const StageLinks& stage_links, LinkPart part) {
  const Context c = without_stages(job, plan);
  Priced priced(job.cost);
  StageWorks w;
  lowering::add_link_works(
      c, stage_links, [&](const Work& work) { return priced.number(work); }, w);
  const auto wanted = [&](LinkPart p) { return part == LinkPart::all || part == p; };
  LinkTimes t;
  if (plan.tp > 1 && wanted(LinkPart::tp)) {
    t.tp_gather = priced.of(w.tp_gather);
    t.loss_gather = priced.of(w.loss_gather);
    t.tp_leave = priced.of(c.sp() ? w.tp_scatter : w.tp_reduce);
    if (c.sums_qk()) t.qk_reduce = priced.of(w.qk_reduce);
  }
  if (plan.cp > 1 && wanted(LinkPart::cp)) {
    t.cp_gather = priced.of(w.cp_gather);
    t.cp_gather_backward = priced.of(w.cp_gather_backward);
    t.cp_scatter = priced.of(w.cp_scatter);
  }
  if (plan.pp > 1 && wanted(LinkPart::next)) t.send = priced.of(w.send);
  if (plan.activation_offload > 0 && wanted(LinkPart::copies)) {
    t.copy_out = priced.of(w.copy_out);
    t.copy_in = priced.of(w.copy_in);
  }
  return t;
}

namespace {

// Of the embedding and the head. Mirrors planner/lowering/passes.cpp. `enter`: a gather of inputs, under SP; `back`: the pass
// that gradients of activations are computed in.
void add_ends(const BlockTimes& blocks, const LinkTimes& links, double enter, Pass back, LayerTimes& t) {
  const double leave = links.tp_leave;
  t.embedding_forward = blocks.of(BlockKind::embedding, Pass::forward) + leave;
  t.embedding_backward = enter + blocks.of(BlockKind::embedding, Pass::backward);
  t.residual = blocks.of(BlockKind::residual, Pass::forward);
  t.head_gemm = blocks.of(BlockKind::head, Pass::forward) + links.loss_gather;
  t.head_forward = blocks.of(BlockKind::norm, Pass::forward) + enter + t.head_gemm;
  t.head_backward =
      enter + blocks.of(BlockKind::head, back) + leave + blocks.of(BlockKind::norm, Pass::backward);
  if (back == Pass::backward_input) t.head_weight = enter + blocks.of(BlockKind::head, Pass::backward_weight);
}

}  // namespace

LayerTimes layer_times(const ParallelPlan& plan, const BlockTimes& blocks, const LinkTimes& links,
                       const StackSpec& stack) {
  const bool ring = plan.cp > 1 && stack.rules.cp_ring;
  // What the exchange over the CP ranks adds to the attention that it runs before, behind, or beside.
  const auto collective = [&](Pass p, double seconds) {
    return ring ? std::max(0.0, seconds - blocks.of(BlockKind::attention, p)) : seconds;
  };
  const bool split = plan.schedule == PipelineSchedule::zero_bubble,
             sp = plan.sequence_parallel && plan.tp > 1;
  const double enter = sp ? links.tp_gather : 0.0, leave = links.tp_leave;
  const auto qk_norms = [&](Pass p) {
    return blocks.of(BlockKind::qk_sums, p) + links.qk_reduce + blocks.of(BlockKind::qk_norm, p);
  };
  const auto pass = [&](Pass p) {
    return 2 * blocks.of(BlockKind::norm, p) + blocks.of(BlockKind::qkv, p) + qk_norms(p) +
           blocks.of(BlockKind::attention, p) + blocks.of(BlockKind::mlp, p) + 2 * enter + 2 * leave +
           collective(p, links.cp_gather);
  };
  // Mirrors planner/lowering/passes.cpp.
  LayerTimes t;
  t.forward = pass(Pass::forward);
  if (ring) t.forward_wait = collective(Pass::forward, links.cp_gather);
  if (plan.recompute.kind == RecomputeKind::full) {
    t.recompute = pass(Pass::recompute);
    if (ring) t.recompute_wait = collective(Pass::recompute, links.cp_gather);
  }
  const Pass back = split ? Pass::backward_input : Pass::backward;
  const double norm = blocks.of(BlockKind::norm, Pass::backward);
  const double mlp_half = enter + blocks.of(BlockKind::mlp, back) + leave + norm;
  const double gathered_and_scattered = collective(back, links.cp_gather_backward + links.cp_scatter);
  if (ring) t.backward_wait = gathered_and_scattered;
  const double attention_half = enter + blocks.of(BlockKind::attention, back) + gathered_and_scattered +
                                qk_norms(Pass::backward) + blocks.of(BlockKind::qkv, back) + leave + norm;
  t.backward = t.backward_again = mlp_half + attention_half;
  add_ends(blocks, links, enter, back, t);
  if (split)
    t.weight = 2 * enter + blocks.of(BlockKind::mlp, Pass::backward_weight) +
               blocks.of(BlockKind::attention, Pass::backward_weight) +
               blocks.of(BlockKind::qkv, Pass::backward_weight);
  t.send = links.send;
  t.copy_out = links.copy_out;
  t.copy_in = links.copy_in;

  // Inputs gathered again under SP run beside compute from the reader before the last one on. Where the compute between
  // two readers is longer than the gather, and nothing else can hold it up, all of the gather is beside compute.
  if (sp && !split) {
    const double gather = links.tp_gather;
    t.regather = 2 * gather;
    const double between_mlp_and_qkv = attention_half;  // to the end of qkv
    const double between_qkv_and_mlp = leave + norm + enter + blocks.of(BlockKind::mlp, back);
    if (gather > 0 && gather <= std::min(between_mlp_and_qkv, between_qkv_and_mlp) && t.backward_wait == 0)
      t.slowed = 2 * gather * stack.kernels.comm_slows_compute;
  }
  return t;
}

bool is_steady(const ParallelPlan& plan, const StackRules& rules) {
  return plan.activation_offload == 0 && !plan.parameter_offload && plan.zero_stage < 3 &&
         !reduces_every_microbatch(plan.zero_stage, plan.pp, rules);
}

namespace {

// A backward slot whose last `offloaded` layers (the chunk's first) come back from the host through a ring: a layer's
// copy may begin once the layer `ring` before it is done. What fits the ring is there when the slot begins.
double fetched_backward(double before, int offloaded, double layer, double copy, int ring) {
  double compute = before, lane = 0;
  std::array<double, 8> done{};  // of the last layers, by turn
  const int turns = std::min<int>(ring, static_cast<int>(done.size()));
  if (turns < ring || offloaded <= ring) return before + offloaded * layer;
  for (int k = 0; k < offloaded; ++k) {
    double there = 0;
    if (k >= ring) there = lane = std::max(lane, done[static_cast<std::size_t>(k % turns)]) + copy;
    compute = std::max(compute, there) + layer;
    done[static_cast<std::size_t>(k % turns)] = compute;
  }
  return compute;
}

// How much longer a forward slot takes whose `offloaded` layers leave through the same ring, free when the slot begins: a layer
// waits for the copy of the one `ring` before, and copies follow one another from the first layer's end on at best.
double waits_for_copies(int offloaded, double layer, double copy, int ring) {
  return offloaded <= ring ? 0 : std::max(0.0, (offloaded - ring) * copy - (offloaded - 2) * layer);
}

// Zeros in every list, as long as the plan has chunks and stages.
void clear_times(const ParallelPlan& plan, const StackSpec& stack, PipelineTimes& p) {
  p.pp = plan.pp;
  p.vp = plan.vp;
  p.schedule = plan.schedule;
  p.p2p_overlaps = plan.schedule == PipelineSchedule::interleaved
                       ? stack.rules.p2p_overlaps_compute_interleaved
                       : stack.rules.p2p_overlaps_compute_1f1b;
  const auto chunks = static_cast<std::size_t>(plan.pp * plan.vp);
  for (auto* list : {&p.forward, &p.backward, &p.busy_forward, &p.busy, &p.weight, &p.layer_forward,
                     &p.layer_backward, &p.slowed, &p.regather})
    list->assign(chunks, 0.0);
  for (auto* list : {&p.copies, &p.send}) list->assign(static_cast<std::size_t>(plan.pp), 0.0);
  p.slows = stack.kernels.comm_slows_compute;
  p.ring = plan.offload_horizon + 1;
  p.offloaded.assign(plan.activation_offload > 0 ? chunks : 0, {});
}

// Layers of a chunk by what of their activations stays: none, so that they are recomputed; all; or all on the host.
struct ChunkLayers {
  int count = 0, again = 0, kept = 0, offloaded = 0;
};
ChunkLayers layers_by_kind(const ParallelPlan& plan, int count) {
  const int again = plan.recompute.kind != RecomputeKind::full
                        ? 0
                        : (plan.recompute.layers < 0 ? count : std::min(count, plan.recompute.layers));
  return {count, again, count - again, std::max(0, std::min(plan.activation_offload, count) - again)};
}

// What the chunk's layers take. `is_last`: the head follows them.
void add_layers(const ChunkLayers& layers, const LayerTimes& t, std::size_t i, bool is_last, bool steady,
                PipelineTimes& p) {
  const auto [count, again, kept, offloaded] = layers;
  const double head = is_last ? t.head_backward : 0.0;
  p.forward[i] = count * t.forward;
  p.backward[i] = kept * t.backward;
  if (offloaded > 0) {
    const double before = (kept - offloaded) * t.backward + head;
    p.backward[i] = fetched_backward(before, offloaded, t.backward, t.copy_in, p.ring) - head;
  }
  if (!p.offloaded.empty())
    p.offloaded[i] = {count,      again,      again + offloaded,
                      t.forward,  t.backward, t.recompute + t.backward_again,
                      t.copy_out, t.copy_in,  i == 0 ? t.embedding_forward : 0.0,
                      head};
  p.busy[i] = kept * (t.backward - t.backward_wait) +
              again * (t.recompute - t.recompute_wait + t.backward_again - t.backward_wait);
  p.backward[i] += again * (t.recompute + t.backward_again);
  // With recomputed layers the gathers of kept ones follow one another only among themselves.
  if (steady && again == 0 && kept > 1) p.slowed[i] = (kept - 1) * t.slowed;
  p.backward[i] += p.slowed[i];
  p.regather[i] = kept * t.regather;
  p.weight[i] = count * t.weight;
  p.layer_forward[i] = t.forward;
  p.layer_backward[i] = again == 0 ? t.backward : std::min(t.backward, t.recompute + t.backward_again);
}

void add_embedding(const LayerTimes& t, PipelineTimes& p) {
  p.forward[0] += t.embedding_forward;
  p.backward[0] += t.embedding_backward;
  p.busy[0] += t.embedding_backward;
  p.embedding_backward = t.embedding_backward;
}

void add_head(const LayerTimes& t, std::size_t i, PipelineTimes& p) {
  p.forward[i] += t.head_forward;
  p.weight[i] += t.head_weight;
  p.backward[i] += t.head_backward;
  p.busy[i] += t.head_backward;
  p.head_forward = t.head_forward;
  p.head_gemm = t.head_gemm;
  p.head_backward = t.head_backward;
}

}  // namespace

void pipeline_times(const ParallelPlan& plan, const std::vector<LayerRange>& chunks, const StackSpec& stack,
                    int microbatches, const StageLayerTimes& by_stage, bool steady, PipelineTimes& p) {
  clear_times(plan, stack, p);
  p.microbatches = microbatches;
  const int n = plan.pp * plan.vp;
  for (int chunk = 0; chunk < n; ++chunk) {
    const auto i = static_cast<std::size_t>(chunk), stage = static_cast<std::size_t>(chunk % plan.pp);
    const LayerTimes& t = by_stage.of(chunk % plan.pp);
    const ChunkLayers layers = layers_by_kind(plan, chunks[i].count);
    add_layers(layers, t, i, chunk == n - 1, steady, p);
    if (layers.offloaded > 0)
      p.copies[stage] += microbatches * layers.offloaded * std::max(t.copy_out, t.copy_in);
    if (chunk == 0) add_embedding(t, p);
    if (chunk == n - 1)
      add_head(t, i, p);
    else
      p.forward[i] += t.residual;
    p.busy_forward[i] = p.forward[i] - layers.count * t.forward_wait;
    p.forward[i] += waits_for_copies(layers.offloaded, t.forward, t.copy_out, p.ring);
    p.send[stage] = t.send;
  }
}

double closing_time(const Job& job, const PlanLinks& links) {
  if (!job.stack.rules.clip_gradients) return 0;
  return job.cost.price(CollectiveWork{CollectiveKind::all_reduce, Bytes(8), links.world}).duration.v;
}

double tied_reduction_time(const Job& job, const ParallelPlan& plan, const PlanLinks& links) {
  if (!job.model.tied_embeddings || plan.pp == 1) return 0;
  // Without a padding of buckets, and learned positions.
  std::int64_t elements =
      std::int64_t{job.model.hidden} * local_shape(job.model, plan.tp, job.stack.rules.vocab_multiple).vocab;
  if (reduces_every_microbatch(plan, job.stack.rules)) elements /= plan.shards();
  return job.cost
      .price(CollectiveWork{CollectiveKind::all_reduce, Bytes(elements * size_bytes(job.training.gradient)),
                            links.tied})
      .duration.v;
}

}  // namespace sextant
