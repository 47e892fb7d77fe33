#include <algorithm>
#include <cmath>

#include "planner/lowering/stage.hpp"

namespace sextant::lowering {

using Use = OperandUse;

StageLowering::StageLowering(Emitter& e, const Context& c, const StageWorks& w, int stage,
                             std::vector<Slot> order, Alike* alike)
    : emitter_(e),
      context_(c),
      works_(w),
      stage_(stage),
      order_(std::move(order)),
      layout_(parameter_layout(c.model, c.plan, c.stack.rules, stage)),
      saved_(static_cast<std::size_t>(
          c.plan.vp * (e.operands() || c.plan.activation_offload > 0 || c.sp() ? c.microbatches : 1))),
      forwards_(static_cast<std::size_t>(c.plan.vp * c.microbatches)),
      own_stamps_(static_cast<std::size_t>(3 * c.plan.vp)),
      shared_stamps_(own_stamps_.size()),
      alike_(alike),
      lanes_of_slots_(lanes_of_slots(c)),
      place_of_layer_(static_cast<std::size_t>(c.model.n_layers), -1),
      gathered_(layout_.buckets.size(), kNoOp),
      ring_slot_(layout_.buckets.size(), -1),
      accumulated_(layout_.buckets.size(), false),
      begun_(layout_.parameters.size(), false) {
  find_parameters();
  place_blocks();
  if (c.ring_gradients()) shared_bucket_ = c.shared_bucket(layout_);
  head_apart_ = embedding_apart_from_head(layout_, c.model, c.plan, c.stack.rules, c.microbatches) >= 0;
  number_works();
  make_buffers();
  if (c.plan.activation_offload > 0) {
    layer_ring_.resize(static_cast<std::size_t>(c.plan.offload_horizon) + 1);
    for (RingedLayer& place : layer_ring_) {
      place.attention =
          e.buffer(BufferKind::activation, stage, c.activation.ring_attention, {.resident = true});
      place.mlp = e.buffer(BufferKind::activation, stage, c.activation.ring_mlp, {.resident = true});
    }
  }
  plan_visits();
}

void StageLowering::find_parameters() {
  for (std::size_t i = 0; i < layout_.parameters.size(); ++i) {
    const Parameter& p = layout_.parameters[i];
    const int index = static_cast<int>(i);
    if (p.kind == ParameterKind::embedding) embedding_ = index;
    if (p.kind == ParameterKind::norm_final) final_norm_ = index;
    if (p.kind == ParameterKind::head) head_ = index;
    if (is_of_layer(p.kind) && place_of_layer_[p.layer] < 0) place_of_layer_[p.layer] = index;
  }
  if (!context_.model.tied_embeddings || context_.plan.pp == 1) return;
  if (stage_ == 0) tied_bucket_ = layout_.parameters[static_cast<std::size_t>(embedding_)].bucket;
  if (stage_ == context_.plan.pp - 1)
    tied_bucket_ = layout_.parameters[static_cast<std::size_t>(head_)].bucket;
}

// Works of every bucket, and how many gradients it waits for.
void StageLowering::number_works() {
  const TrainingSpec& training = context_.training;
  const GroupShape& shard = context_.links.of(stage_).shard;
  const bool scatter = layout_.shards > 1;
  for (const Bucket& b : layout_.buckets) {
    const std::int64_t sent =
        layout_.slice(b) * layout_.shards;  // unequal slices go round at the pace of the largest
    remaining_.push_back(contributions(static_cast<int>(remaining_.size())));
    reduce_work_.push_back(context_.plan.replicas() == 1
                               ? WorkId{0}
                               : emitter_.work(CollectiveWork{
                                     scatter ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce,
                                     Bytes(sent * size_bytes(training.reduction)), shard}));
    gather_work_.push_back(
        scatter ? emitter_.work(CollectiveWork{CollectiveKind::all_gather,
                                               Bytes(sent * size_bytes(training.parameter)), shard})
                : WorkId{0});
    copy_work_.push_back(
        context_.plan.parameter_offload
            ? emitter_.work(CopyWork{Bytes(layout_.slice(b) * fetched_bytes(training, context_.stack.rules)),
                                     CopyDirection::host_to_device})
            : WorkId{0});
  }
}

std::int64_t StageLowering::on_host(std::int64_t elements) const {
  return host_share(context_.plan.optimizer_offload, elements);
}

std::int64_t StageLowering::bytes_of_gradient(std::int64_t elements) const {
  return static_cast<std::int64_t>(std::llround(context_.state.gradient * static_cast<double>(elements)));
}

// What of a bucket's state rests on the device or the host all step long.
void StageLowering::make_state(std::size_t bucket) {
  const Bucket& b = layout_.buckets[bucket];
  const auto parameter = static_cast<std::int64_t>(context_.state.parameter);
  const auto bytes = [](double x) { return static_cast<std::int64_t>(std::llround(x)); };
  const bool ring = context_.ring_parameters(), ring_gradient = context_.ring_gradients();
  const BufferKind rest = context_.plan.parameter_offload ? BufferKind::host : BufferKind::parameter;
  const std::int64_t slice = layout_.slice(b), host = on_host(slice);
  const auto state = [&](BufferKind kind, Use use, std::int64_t size) {
    return emitter_.state(kind, stage_, size, use, bucket);
  };
  const auto gradient = [&](std::int64_t elements) {
    return state(BufferKind::gradient, Use::gradient, bytes_of_gradient(elements));
  };
  parameter_.push_back(ring ? kNoBuffer
                            : state(BufferKind::parameter, Use::parameter, b.elements * parameter));
  shard_.push_back(ring ? state(rest, Use::parameter, slice * parameter) : kNoBuffer);
  gradient_.push_back(ring_gradient ? kNoBuffer : gradient(b.elements));
  accumulator_.push_back(ring_gradient && !context_.sums_on_host() ? gradient(slice) : kNoBuffer);
  optimizer_.push_back(state(BufferKind::optimizer_state, Use::optimizer,
                             bytes(context_.state.optimizer * static_cast<double>(slice - host))));
  host_optimizer_.push_back(state(BufferKind::host, Use::optimizer,
                                  bytes(context_.state.host_optimizer * static_cast<double>(host) +
                                        context_.state.host_places * static_cast<double>(slice - host))));
  host_gradient_.push_back(
      state(BufferKind::host, Use::gradient, host * std::int64_t{size_bytes(context_.training.gradient)}));
}

// Units that are fetched, the largest of so many elements.
void StageLowering::make_unit_ring(std::int64_t largest) {
  const auto parameter = static_cast<std::int64_t>(context_.state.parameter);
  for (std::size_t i = 0; i < context_.unit_ring_count(); ++i) {
    unit_ring_.push_back(
        emitter_.buffer(BufferKind::communication, stage_, largest * parameter, {.resident = true}));
    if (context_.plan.parameter_offload && layout_.shards > 1)
      staging_.push_back(
          emitter_.buffer(BufferKind::communication, stage_,
                          layout_.slice(largest) * fetched_bytes(context_.training, context_.stack.rules),
                          {.resident = true}));
  }
}

// Gradients of every micro-batch before they are reduced, the largest of so many elements.
void StageLowering::make_gradient_ring(std::int64_t largest) {
  const auto place = [&](std::int64_t elements) {
    return emitter_.buffer(BufferKind::communication, stage_, bytes_of_gradient(elements),
                           {.resident = true});
  };
  for (std::size_t slot = 0; slot < context_.gradient_ring_count(); ++slot)
    gradient_ring_[slot] = place(largest);
  if (shared_bucket_ >= 0) gradient_ring_[kSharedSlot] = place(bucket(shared_bucket_).elements);
}

void StageLowering::make_buffers() {
  std::int64_t largest = 0, largest_in_ring = 0;
  for (std::size_t i = 0; i < layout_.buckets.size(); ++i) {
    const std::int64_t elements = layout_.buckets[i].elements;
    largest = std::max(largest, elements);
    if (static_cast<int>(i) != shared_bucket_) largest_in_ring = std::max(largest_in_ring, elements);
    make_state(i);
  }
  if (head_apart_)
    head_gradient_ =
        emitter_.buffer(BufferKind::gradient, stage_,
                        bytes_of_gradient(layout_.parameters[static_cast<std::size_t>(embedding_)].elements),
                        {.resident = true});
  if (context_.ring_parameters()) make_unit_ring(largest);
  if (context_.ring_gradients()) make_gradient_ring(largest_in_ring);
  if (context_.sums_on_host() && context_.microbatches > 1)
    landing_ =
        emitter_.buffer(BufferKind::host, stage_,
                        layout_.slice(largest) * size_bytes(context_.training.gradient), {.resident = true});
  if (context_.sp())
    for (BufferId& slot : regathered_)
      slot = emitter_.buffer(BufferKind::communication, stage_, context_.activation.gathered,
                             {.resident = true});
  if (context_.activation.transient > 0)
    emitter_.buffer(BufferKind::workspace, stage_, context_.activation.transient,
                    {.resident = true, .scratch = true});
  if (context_.activation.logits_kept > 0 && stage_ == context_.stage_of(context_.n_chunks() - 1))
    emitter_.buffer(BufferKind::logits, stage_, context_.activation.logits_kept,
                    {.resident = true, .scratch = true});
  emitter_.buffer(BufferKind::communication, stage_, context_.bytes_summed_apart(layout_),
                  {.resident = true, .scratch = true});
  update_buffer_ = emitter_.buffer(BufferKind::workspace, stage_, context_.update_workspace(layout_));
  if (context_.stack.rules.clip_gradients) {
    norm_buffer_ = emitter_.buffer(BufferKind::workspace, stage_,
                                   8 * static_cast<std::int64_t>(layout_.buckets.size()), {.resident = true});
    norm_total_ = emitter_.buffer(BufferKind::workspace, stage_, 8, {.resident = true});
  }
}

// Adam over the owned slices of buckets [first, last): one launch on the device, one on the host for the offloaded share.
void StageLowering::update(int first, int last) {
  std::int64_t device = 0, host = 0;
  for (int b = first; b < last; ++b) {
    const std::int64_t slice = layout_.slice(bucket(b));
    host += on_host(slice);
    device += slice - on_host(slice);
  }
  updated_ = kNoOp;
  if (device > 0) update_on_device(first, last, device);
  if (host > 0) update_on_host(first, last, host);
}

// `elements` of the buckets are updated there.
Op StageLowering::update_op(int first, int last, std::int64_t elements, LaneKind where) {
  Op op;
  op.role = OpRole::update;
  op.stage = static_cast<std::uint16_t>(stage_);
  if (last - first == 1) op.bucket = static_cast<std::uint16_t>(first);
  op.work = emitter_.work(StateWork{StateKind::update, elements, context_.training.parameter,
                                    context_.training.gradient, where == LaneKind::host});
  op.lanes[0] = lane(where);
  return op;
}

void StageLowering::update_on_device(int first, int last, std::int64_t elements) {
  const auto parameter = static_cast<std::int64_t>(context_.state.parameter);
  const bool ring = context_.ring_parameters(), parameters_leave = context_.plan.parameter_offload;
  Op op = update_op(first, last, elements, LaneKind::compute);
  updated_ = emitter_.hold(emitter_.emit(op));
  for (int i = first; i < last; ++i) {
    const auto b = static_cast<std::size_t>(i);
    const std::int64_t slice = layout_.slice(bucket(i)), own = slice - on_host(slice);
    emitter_.read(context_.ring_gradients() ? accumulator_[b] : gradient_[b], Use::gradient, 0,
                  bytes_of_gradient(own));
    emitter_.read(optimizer_[b], Use::optimizer);
    emitter_.write(optimizer_[b], Use::optimizer);
    if (!parameters_leave)
      emitter_.write(ring ? shard_[b] : parameter_[b], Use::parameter, 0, own * parameter);
  }
  emitter_.read(norm_total_, Use::norm);
  emitter_.write(update_buffer_, Use::copies);
  if (!parameters_leave) return;
  op.role = OpRole::copy_out;
  op.work = emitter_.work(CopyWork{Bytes(elements * fetched_bytes(context_.training, context_.stack.rules)),
                                   CopyDirection::device_to_host});
  op.lanes[0] = lane(LaneKind::device_to_host);
  updated_ = emitter_.emit(op, {updated_});
  for (int i = first; i < last; ++i) {
    const auto b = static_cast<std::size_t>(i);
    const std::int64_t slice = layout_.slice(bucket(i));
    emitter_.read(optimizer_[b], Use::optimizer);
    emitter_.write(shard_[b], Use::parameter, 0, (slice - on_host(slice)) * parameter);
  }
}

// Parameters updated there come back by copy.
void StageLowering::update_on_host(int first, int last, std::int64_t elements) {
  const auto parameter = static_cast<std::int64_t>(context_.state.parameter);
  const bool ring = context_.ring_parameters(), parameters_stay = context_.plan.parameter_offload;
  // Each bucket's part of the optimizer, and of the parameters where they are written by the op.
  struct Touched {
    bool updates = false, writes = false;
  };
  const auto touch = [&](const Touched& by) {
    for (int i = first; i < last; ++i) {
      const auto b = static_cast<std::size_t>(i);
      const std::int64_t slice = layout_.slice(bucket(i));
      if (by.updates) emitter_.read(host_gradient_[b], Use::gradient);
      emitter_.read(host_optimizer_[b], Use::optimizer);
      if (by.updates) emitter_.write(host_optimizer_[b], Use::optimizer);
      if (by.writes)
        emitter_.write(ring ? shard_[b] : parameter_[b], Use::parameter, (slice - on_host(slice)) * parameter,
                       slice * parameter);
    }
  };
  Op op = update_op(first, last, elements, LaneKind::host);
  host_updated_ = emitter_.emit(op);
  touch({.updates = true, .writes = parameters_stay});
  emitter_.read(norm_total_, Use::norm);
  if (parameters_stay) return;
  op.role = OpRole::copy_in;
  op.work = emitter_.work(CopyWork{Bytes(elements * parameter), CopyDirection::host_to_device});
  op.lanes[0] = lane(LaneKind::host_to_device);
  host_updated_ = emitter_.emit(op, {host_updated_});
  touch({.writes = true});
}

// One bucket into its place, whose slice is this rank's.
OpId StageLowering::gather_whole(int b, OpId behind, OpId behind_host) {
  Op op;
  op.role = OpRole::param_gather;
  op.stage = static_cast<std::uint16_t>(stage_);
  op.bucket = static_cast<std::uint16_t>(b);
  op.work = gather_work_[static_cast<std::size_t>(b)];
  const bool overlaps = context_.plan.overlap_param_gather;
  // Repeated gathers share the links of their process group with its reductions.
  const LaneKind apart =
      context_.gathers_again() && overlaps_reduction() ? LaneKind::grad_reduce : LaneKind::param_gather;
  op.lanes[0] = lane(overlaps ? apart : LaneKind::compute);
  const OpId id = emitter_.emit(op, {overlaps ? behind : kNoOp, behind_host});
  const auto parameter = static_cast<std::int64_t>(context_.state.parameter);
  emitter_.read(parameter_[static_cast<std::size_t>(b)], Use::parameter, 0,
                layout_.slice(bucket(b)) * parameter);
  emitter_.write(parameter_[static_cast<std::size_t>(b)], Use::parameter);
  if (overlaps) gathered_[static_cast<std::size_t>(b)] = emitter_.hold(id);
  return id;
}

// Before the forward of a further micro-batch; behind the backward that used the parameters last.
void StageLowering::gather_again() {
  OpId behind = emitter_.hold(last_);
  for (int b = static_cast<int>(layout_.buckets.size()) - 1; b >= 0; --b) {
    gather_whole(b, behind, kNoOp);
    behind = kNoOp;
  }
}

void StageLowering::begin_step() {
  const int n = static_cast<int>(layout_.buckets.size());
  const bool gather = layout_.shards > 1 && !context_.ring_parameters();
  const bool pipelined =
      gather && context_.stack.rules.pipelined_update && context_.plan.overlap_param_gather;
  const auto gather_bucket = [&](int b) {
    const OpId id = gather_whole(b, updated_, host_updated_);
    updated_ = pipelined ? updated_ : kNoOp;  // the lane keeps the order behind the first
    host_updated_ = kNoOp;
    return id;
  };
  OpId last_gather = kNoOp;
  if (pipelined) {
    for (int b = n - 1; b >= 0; --b) {
      update(b, b + 1);
      last_gather = gather_bucket(b);
    }
  } else {
    update(0, n);
    for (int b = n - 1; gather && b >= 0; --b) last_gather = gather_bucket(b);
  }
  const bool fetched = context_.ring_parameters() && (layout_.shards > 1 || context_.plan.parameter_offload);
  if (!gather && !fetched) {
    emitter_.after(stage_, host_updated_);
    host_updated_ = kNoOp;
  }
  if (gather && context_.plan.overlap_param_gather && !context_.stack.rules.param_gather_overlaps_forward) {
    emitter_.after(stage_, last_gather);
    std::fill(gathered_.begin(), gathered_.end(), kNoOp);
  }
  if (!context_.ring_gradients()) clear_gradients();
}

}  // namespace sextant::lowering
