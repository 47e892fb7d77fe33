#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

namespace {
constexpr int kModulesOfLayer =
    3;  // parameter_layout: QKV, attention output and MLP, with the norms before them
}  // namespace

std::pair<int, int> StageLowering::parameters_of(const Site& at, BlockKind kind) const {
  const auto one = [](int index) { return index < 0 ? std::pair{0, 0} : std::pair{index, index + 1}; };
  if (kind == BlockKind::embedding) return one(embedding_);
  if (kind == BlockKind::head) return one(head_ >= 0 ? head_ : embedding_);  // tied on one stage
  if (kind == BlockKind::residual) return {0, 0};
  if (kind == BlockKind::norm && at.norm == NormSite::final) return one(final_norm_);
  const int first = place_of_layer_[static_cast<std::size_t>(at.layer)];
  std::size_t part = static_cast<std::size_t>(kind);
  if (kind == BlockKind::norm) part = at.norm == NormSite::mlp ? kNormMlpPart : kNormAttentionPart;
  return {first + in_layer_[part].first, first + in_layer_[part].second};
}

// Where the parameters of each block stand among those of a layer.
void StageLowering::place_blocks() {
  const std::vector<ParameterKind> kinds = layer_parameters(context_.model);
  for (int i = 0; i < static_cast<int>(kinds.size()); ++i) {
    const ParameterKind kind = kinds[static_cast<std::size_t>(i)];
    const std::size_t part = kind == ParameterKind::norm_mlp ? kNormMlpPart
                             : kind == ParameterKind::norm_attention
                                 ? kNormAttentionPart
                                 : static_cast<std::size_t>(gradient_writer(kind));
    auto& [first, last] = in_layer_[part];
    if (first == last) first = i;
    last = i + 1;
  }
}

// The first reader of a bucket in the step waits for its gather; later readers stand behind it on the compute lane.
void StageLowering::wait_parameters(const Site& at, BlockKind kind) {
  if (context_.ring_parameters()) return;
  const auto [first, last] = parameters_of(at, kind);
  for (int p = first; p < last; ++p) {
    OpId& gathered = gathered_[layout_.parameters[static_cast<std::size_t>(p)].bucket];
    emitter_.after(stage_, gathered);
    gathered = kNoOp;
  }
}

void StageLowering::read_parameters(const Site& at, BlockKind kind) {
  if (!emitter_.operands()) return;
  const auto [first, last] = parameters_of(at, kind);
  const auto element = static_cast<std::int64_t>(context_.state.parameter);
  for (int i = first; i < last; ++i) {
    const Parameter& p = layout_.parameters[static_cast<std::size_t>(i)];
    BufferId buffer = parameter_[p.bucket];
    if (context_.ring_parameters()) {  // the newest visit of its unit
      std::size_t v = next_visit_;
      while (v > 0 && visit_bucket_[v - 1] != p.bucket) --v;
      buffer = unit_ring_[(v - 1) % unit_ring_.size()];
    }
    emitter_.read(buffer, OperandUse::parameter, p.offset * element, (p.offset + p.elements) * element);
  }
}

// Lists the units that the step's slots visit, so that they can be fetched ahead across slots.
void StageLowering::plan_visits() {
  if (!context_.ring_parameters()) return;
  const int units = fetches_modules() ? kModulesOfLayer : 1;
  const auto last_used = [&](int layer) {  // buckets stand in reverse order of use
    return layout_.parameters[static_cast<std::size_t>(place_of_layer_[static_cast<std::size_t>(layer)])]
        .bucket;
  };
  const auto push_forward = [&](int layer) {
    for (int u = units - 1; u >= 0; --u) visit_bucket_.push_back(last_used(layer) + u);
  };
  const auto push_backward = [&](int layer, bool again) {
    if (again) push_forward(layer);
    // What the repeated forward used last is still there.
    for (int u = again ? 1 : 0; u < units; ++u) visit_bucket_.push_back(last_used(layer) + u);
  };
  for (const Slot& slot : order_) {
    const int chunk = model_chunk(slot);
    const LayerRange layers = range(chunk);
    std::vector<int> head;  // in order of use in the forward pass
    if (last_chunk(chunk)) head = {norm_bucket(), head_bucket()};
    if (last_chunk(chunk) && head.front() == head.back()) head.pop_back();
    if (slot.kind == SlotKind::forward) {
      if (chunk == 0)
        visit_bucket_.push_back(layout_.parameters[static_cast<std::size_t>(embedding_)].bucket);
      for (int i = 0; i < layers.count; ++i) push_forward(layers.first + i);
      visit_bucket_.insert(visit_bucket_.end(), head.begin(), head.end());
    } else if (slot.kind == SlotKind::backward) {
      visit_bucket_.insert(visit_bucket_.end(), head.rbegin(), head.rend());
      for (int i = layers.count - 1; i >= 0; --i) push_backward(layers.first + i, recomputed(i));
    } else if (last_chunk(chunk) &&
               reads_parameters(context_.model, BlockKind::head, Pass::backward_weight)) {
      visit_bucket_.push_back(head_bucket());
    }
  }
  visits_.resize(visit_bucket_.size());
}

void StageLowering::visit_layer(int layer) {
  if (!context_.ring_parameters() || fetches_modules()) return;
  visit(
      layout_.parameters[static_cast<std::size_t>(place_of_layer_[static_cast<std::size_t>(layer)])].bucket);
}

void StageLowering::visit_module(const Site& at, BlockKind kind) {
  if (!fetches_modules() || at.layer == kNone16) return;
  const auto [first, last] = parameters_of(at, kind);
  if (first == last) return;
  const int bucket = layout_.parameters[static_cast<std::size_t>(first)].bucket;
  if (bucket == module_) return;
  module_ = bucket;
  visit(bucket);
}

// Enters the next unit: everything up to `prefetch` units ahead is fetched, the unit itself is waited for.
void StageLowering::visit(int bucket) {
  if (!context_.ring_parameters()) return;
  SEXTANT_CHECK(visit_bucket_[next_visit_] == bucket, "unit visits must follow their plan");
  const std::size_t ahead = context_.unit_ring_count() - 1;
  while (next_fetch_ < visit_bucket_.size() && next_fetch_ <= next_visit_ + ahead) fetch(next_fetch_++);
  emitter_.after(stage_, visits_[next_visit_].wait);
  ++next_visit_;
}

// Copies the slice from the host (parameter offload), gathers the unit's slices (sharded parameters), into the ring.
void StageLowering::fetch(std::size_t index) {
  const int b = visit_bucket_[index];
  const std::size_t ring = context_.unit_ring_count();
  const BufferId unit = unit_ring_[index % ring];
  OpId ready = index >= ring ? visits_[index - ring].last_reader : kNoOp;
  const OpId updated = index == 0 ? updated_ : kNoOp, host_updated = index == 0 ? host_updated_ : kNoOp;
  const bool sharded = layout_.shards > 1;
  Op op;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.bucket = static_cast<std::uint16_t>(b);
  op.pass = Pass::none;
  BufferId from = shard_[static_cast<std::size_t>(b)];
  // What waits for its gather is as it was copied.
  const std::int64_t staged_bytes =
      layout_.slice(bucket(b)) * (sharded && context_.plan.parameter_offload
                                      ? std::int64_t{fetched_bytes(context_.training, context_.stack.rules)}
                                      : static_cast<std::int64_t>(context_.state.parameter));
  OpId last = kNoOp;
  if (context_.plan.parameter_offload) {
    op.role = OpRole::copy_in;
    op.work = copy_work_[static_cast<std::size_t>(b)];
    op.lanes[0] = lane(LaneKind::host_to_device);
    const BufferId to = sharded ? staging_[index % ring] : unit;
    // The staging slot is free once the gather that read it has run.
    const OpId staged = sharded && index >= ring ? visits_[index - ring].gather : kNoOp;
    last = emitter_.emit(op, {updated, host_updated, sharded ? staged : ready});
    emitter_.read(from, OperandUse::parameter);
    emitter_.write(to, OperandUse::parameter, 0, staged_bytes);
    from = to;
  }
  if (sharded) {
    op.role = OpRole::param_gather;
    op.work = gather_work_[static_cast<std::size_t>(b)];
    // Gathers and reductions of one process group run on one stream: they share its links, not double them.
    const LaneKind overlapped = overlaps_grad_reduce(context_.plan, context_.stack.rules)
                                    ? LaneKind::grad_reduce
                                    : LaneKind::param_gather;
    op.lanes[0] = lane(context_.plan.overlap_param_gather ? overlapped : LaneKind::compute);
    const bool own_lane = context_.plan.overlap_param_gather;
    const bool first = last == kNoOp;  // no copy before it
    last = emitter_.emit(op, {first && own_lane ? updated : kNoOp, first ? host_updated : kNoOp, last,
                              own_lane ? ready : kNoOp});
    emitter_.read(from, OperandUse::parameter, 0, staged_bytes);
    emitter_.write(unit, OperandUse::parameter, 0,
                   bucket(b).elements * static_cast<std::int64_t>(context_.state.parameter));
    visits_[index].gather = emitter_.hold(last);
    if (!own_lane) last = kNoOp;  // on the compute lane there is nothing to wait for
  }
  visits_[index].wait = last;
}

}  // namespace sextant::lowering
