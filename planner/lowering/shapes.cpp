#include "planner/lowering/shapes.hpp"

#include <algorithm>
#include <cmath>

namespace sextant::lowering {

int Context::shared_bucket(const ParameterLayout& layout) const {
  if (!ring_gradients() || !model.tied_embeddings || n_chunks() > 1) return -1;
  for (const Parameter& p : layout.parameters)
    if (p.kind == ParameterKind::embedding) return p.bucket;
  return -1;
}

std::int64_t Context::bytes_summed_apart(const ParameterLayout& layout) const {
  const bool apart = stack.memory.zero2_sums_apart && plan.zero_stage == 2 && ring_gradients() &&
                     microbatches > 1 && plan.optimizer_offload == 0;
  return apart ? std::llround(state.gradient * static_cast<double>(layout.owned())) : 0;
}

std::int64_t Context::ring_bytes(const ParameterLayout& layout) const {
  const auto of_gradients = [&](std::int64_t elements) {
    return std::llround(state.gradient * static_cast<double>(elements));
  };
  const int shared = shared_bucket(layout);
  std::int64_t largest = 0, largest_in_ring = 0, bytes = 0;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    const std::int64_t elements = layout.buckets[b].elements;
    largest = std::max(largest, elements);
    if (static_cast<int>(b) != shared) largest_in_ring = std::max(largest_in_ring, elements);
  }
  if (ring_parameters()) {
    const auto places = static_cast<std::int64_t>(unit_ring_count());
    bytes += places * largest * static_cast<std::int64_t>(state.parameter);
    if (plan.parameter_offload && layout.shards > 1)
      bytes += places * (layout.slice(largest) * fetched_bytes(training, stack.rules));
  }
  if (ring_gradients()) {
    bytes += static_cast<std::int64_t>(gradient_ring_count()) * of_gradients(largest_in_ring);
    if (shared >= 0) bytes += of_gradients(layout.buckets[static_cast<std::size_t>(shared)].elements);
  }
  return bytes + bytes_summed_apart(layout);
}

std::int64_t Context::update_workspace(const ParameterLayout& layout) const {
  if (state.update <= 0) return 0;
  std::int64_t updated = 0, others = 0;
  for (const Bucket& b : layout.buckets) {
    const std::int64_t slice = layout.slice(b);
    updated += slice - host_share(plan.optimizer_offload, slice);
    others += b.elements - slice;
  }
  if (plan.zero_stage >= 3 && stack.memory.zero3_update_elements > 0)
    updated = std::min(updated, stack.memory.zero3_update_elements);
  std::int64_t freed = ring_bytes(layout) + activation.transient - activation.wgrad_placeholders;
  if (sp()) freed += 2 * activation.gathered;
  if (gathers_again()) freed += layout.padded * static_cast<std::int64_t>(state.parameter);
  if (std::ranges::count(stack.memory.update_frees_gradients, plan.zero_stage) > 0 && !ring_gradients())
    freed +=
        std::llround(state.gradient * static_cast<double>(plan.zero_stage == 0 ? layout.padded : others));
  return std::max<std::int64_t>(0, std::llround(state.update * static_cast<double>(updated)) - freed);
}

Context make_context(const ModelSpec& model, const TrainingSpec& training, const PlanLinks& links,
                     const ParallelPlan& plan, const StackSpec& stack) {
  return Context{model,
                 training,
                 links,
                 plan,
                 stack,
                 local_shape(model, plan.tp, stack.rules.vocab_multiple),
                 activation_bytes(model, training, plan, stack),
                 state_bytes(training, plan, stack),
                 layer_ranges(plan, model.n_layers),
                 microbatches(plan, training),
                 reduces_every_microbatch(plan, stack.rules),
                 fetches_parameters(plan, stack.rules),
                 sums_gradients_on_host(plan, stack.rules)};
}

namespace {

BlockWork block_work(const Context& c, BlockKind kind, Pass pass) {
  BlockWork w = block_extents(c.model, c.training, c.plan, c.local, c.stack.rules);
  w.kind = kind;
  w.pass = pass;
  // Only what the block depends on, so that equal prices share one work.
  const bool of_qkv = kind == BlockKind::qkv || kind == BlockKind::qk_sums || kind == BlockKind::qk_norm;
  if (!of_qkv && kind != BlockKind::attention) w.heads = w.kv_heads = 0;
  if (kind != BlockKind::mlp) w.ffn = 0;
  if (kind != BlockKind::embedding && kind != BlockKind::head) w.vocab = 0;
  if (!of_qkv && kind != BlockKind::attention) w.qk_norm = QkNorm::none;
  if (kind != BlockKind::attention) w.window = 0;
  if (kind != BlockKind::head) {
    w.normalized = w.short_logits = false;
    w.chunk = 0;
  }
  const bool biased[] = {c.model.qkv_bias, c.model.output_bias, c.model.mlp_bias};
  if (kind == BlockKind::qkv || kind == BlockKind::attention || kind == BlockKind::mlp)
    w.bias = biased[kind == BlockKind::qkv ? 0 : kind == BlockKind::attention ? 1 : 2];
  // Keys and values that are gathered over cp stand apart.
  w.joined =
      w.joined && (kind == BlockKind::mlp ? c.model.gated_mlp
                                          : c.plan.cp == 1 && (of_qkv || kind == BlockKind::attention));
  const bool again = kind == BlockKind::attention ||
                     (c.stack.rules.selective_by_operation &&
                      (kind == BlockKind::norm || kind == BlockKind::qkv || kind == BlockKind::mlp));
  w.recompute_core = again && (pass == Pass::backward || pass == Pass::backward_input) &&
                     c.plan.recompute.kind == RecomputeKind::selective;
  return w;
}

}  // namespace

bool has_kind(const Context& c, BlockKind kind) {
  if (kind == BlockKind::qk_sums) return c.sums_qk();
  return kind != BlockKind::qk_norm || c.norms_qk();
}

bool has_pass(const Context& c, Pass pass) {
  if (pass == Pass::backward_input || pass == Pass::backward_weight) return c.split_backward();
  return pass != Pass::recompute || c.plan.recompute.kind == RecomputeKind::full;
}

void add_block_works(const Context& c, const NumberOfWork& number, StageWorks& w) {
  for (std::size_t k = 0; k < w.block.size(); ++k)
    for (std::size_t p = 1; p < w.block[k].by_pass.size(); ++p)
      if (const auto pass = static_cast<Pass>(p); has_kind(c, static_cast<BlockKind>(k)) && has_pass(c, pass))
        w.block[k].by_pass[p] = number(block_work(c, static_cast<BlockKind>(k), pass));
}

std::vector<StageWorks> stage_works(Emitter& e, const Context& c) {
  const NumberOfWork number = [&](const Work& work) { return e.work(work); };
  StageWorks common;
  add_block_works(c, number, common);
  std::vector<StageWorks> stages(c.links.stages.size(), common);
  for (std::size_t i = 0; i < stages.size(); ++i) add_link_works(c, c.links.stages[i], number, stages[i]);
  return stages;
}

void add_link_works(const Context& c, const StageLinks& links, const NumberOfWork& number, StageWorks& w) {
  if (c.plan.tp > 1) {
    const bool tiled = c.plan.overlap_tp;
    const Bytes whole(c.activation.gathered);
    w.tp_gather = number(CollectiveWork{CollectiveKind::all_gather, whole, links.tp, tiled});
    w.tp_scatter = number(CollectiveWork{CollectiveKind::reduce_scatter, whole, links.tp, tiled});
    w.tp_reduce = number(CollectiveWork{CollectiveKind::all_reduce, whole, links.tp, tiled});
    w.loss_gather =
        number(CollectiveWork{CollectiveKind::all_gather, Bytes(c.activation.loss_stats), links.tp});
    if (c.sums_qk())
      w.qk_reduce = number(CollectiveWork{CollectiveKind::all_reduce, Bytes(c.activation.qk_sums), links.tp});
  }
  if (c.plan.cp > 1) {
    const Bytes whole(c.activation.kv_gathered);
    w.cp_gather = w.cp_gather_backward = number(CollectiveWork{CollectiveKind::all_gather, whole, links.cp});
    if (c.rings_again())
      w.cp_gather_backward = number(CollectiveWork{CollectiveKind::all_gather, Bytes(2 * whole.v), links.cp});
    w.cp_scatter = number(CollectiveWork{CollectiveKind::reduce_scatter, whole, links.cp});
  }
  if (c.plan.pp > 1) {
    const bool scattered = c.stack.rules.scatter_p2p && !c.sp();
    const std::int64_t bytes = scattered ? c.activation.stream / c.plan.tp : c.activation.stream;
    w.send = number(TransferWork{Bytes(bytes), links.next});
  }
  if (c.plan.activation_offload > 0) {
    const Bytes layer(c.activation.saved_attention + c.activation.saved_mlp);
    w.copy_out = number(CopyWork{layer, CopyDirection::device_to_host});
    w.copy_in = number(CopyWork{layer, CopyDirection::host_to_device});
  }
}

}  // namespace sextant::lowering
