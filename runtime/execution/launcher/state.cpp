// Gradients, norms, Adam, and copies between the memories.
#include <cmath>
#include <cstring>

#include "core/base/error.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "runtime/execution/launcher/launcher.hpp"

namespace sextant {

std::pair<std::size_t, std::size_t> StepLauncher::buckets(const Op& op) const {
  if (op.bucket != kNone16) return {op.bucket, std::size_t{op.bucket} + 1};
  return {0, state_.layout().buckets.size()};
}

void StepLauncher::zero(const Op& op, StreamId stream) {
  const auto ranges = all(op, OperandUse::gradient, Access::write);
  run(stream, [this, ranges](const BlockContext& c) { set_zero(c, ranges); });
}

void StepLauncher::set_zero(const BlockContext& c, const std::vector<Range>& ranges) const {
  const Dtype dtype = state_.accumulator();
  for (const Range& r : ranges)
    kernels_.zero({.x = {r.data, dtype, 1, r.bytes / size_bytes(dtype)}, .stream = c.stream});
}

// A slice that was reduced for one micro-batch; or what a tied head has summed, to its embedding's gradient.
void StepLauncher::accumulate(const Op& op, StreamId stream) {
  if (const Range sum = find(op, OperandUse::gradient, Access::write)) {
    const Dtype type = state_.accumulator();
    const Range head = find(op, OperandUse::gradient, Access::read);
    const std::int64_t n = sum.bytes / size_bytes(type);
    return run(stream, [this, from = TensorView(head.data, type, 1, n),
                        to = TensorView(sum.data, type, 1, n)](const BlockContext& c) {
      kernels_.accumulate({.source = from, .destination = to, .stream = c.stream});
    });
  }
  const auto b = static_cast<std::size_t>(op.bucket);
  const Dtype dtype = state_.accumulator();
  const Range ring = find(op, OperandUse::gradient, Access::read);
  const TensorView from(ring.data + state_.slice_begin(b) * size_bytes(dtype), dtype, 1, state_.slice(b));
  const TensorView to = state_.owned_gradient(b);
  const bool first = !find(op, OperandUse::optimizer, Access::read);  // replaces what the last step left
  run(stream, [this, from, to, first](const BlockContext& c) {
    if (first)
      kernels_.cast({.source = from, .destination = to, .stream = c.stream});
    else
      kernels_.accumulate({.source = from, .destination = to, .stream = c.stream});
  });
}

void StepLauncher::norm_partial(const Op& op, StreamId stream) {
  const auto b = static_cast<std::size_t>(op.bucket);
  run(stream, [this, b](const BlockContext& c) {
    const TensorView owned = state_.owned_gradient(b);
    state_.for_each_counted(b, [&](ElementRange r) {
      kernels_.squared_norm({.x = owned.column_range(r.begin, r.end - r.begin),
                             .sum = exchange_.squared(b),
                             .stream = c.stream});
    });
  });
}

void StepLauncher::norm_reduce(const Op&, OpId id, StreamId stream) {
  Communicator* world = groups_.of(id);
  device_.launch(stream, [this, world](NativeStream s) {
    double* sum = exchange_.squared_norm();
    kernels_.total({.x = exchange_.all_squared(), .sum = sum, .stream = s});
    world->all_reduce(sum, sum, 1, Dtype::fp64, Reduction::sum, s);
  });
}

void StepLauncher::update(const Op& op, StreamId stream) {
  const bool host = std::get<StateWork>(graph_.works[op.work]).host;
  const auto [first, last] = buckets(op);
  const auto adamw_of_op = [this, host, first = first, last = last](NativeStream native) {
    if (scalars.skip) return;
    for (std::size_t b = first; b < last; ++b) adamw(b, host, host ? &scalars : exchange_.scalars(), native);
  };
  if (host)
    device_.launch_host(stream, [adamw_of_op] { adamw_of_op({}); });
  else
    device_.launch(stream, adamw_of_op);
}

void StepLauncher::adamw(std::size_t b, bool host, const AdamwScalars* of_step, NativeStream native) {
  if ((host ? state_.on_host(b) : state_.on_device(b)) == 0) return;
  AdamwArgs args = state_.adamw(b, host);
  args.beta1 = beta1;
  args.beta2 = beta2;
  args.eps = epsilon;
  args.scalars = of_step;
  args.stream = native;
  (host ? cpu_kernels() : kernels_).adamw(args);
  const std::lock_guard lock(updated_mutex_);
  updated_.emplace(b, host);
}

void StepLauncher::complete_updates(bool begun) {
  SEXTANT_CHECK(device_.unified(), "what ranks of GPUs have left is not completed by the host");
  if (!begun) updated_.clear();
  if (scalars.skip) return;
  for (std::size_t b = 0; b < state_.layout().buckets.size(); ++b)
    for (const bool host : {false, true})
      if (!updated_.contains({b, host})) adamw(b, host, &scalars, {});
}

void StepLauncher::copy(const Op& op, StreamId stream) {
  const Space device = Space::device, host = Space::host;
  if (of_state(op)) return copy_state(op, stream);
  // Saved activations of a layer, attention half and then MLP half, one behind the other in the host's memory.
  std::int64_t offset = 0;
  const bool out = op.role == OpRole::copy_out;
  const Range rest = find(op, OperandUse::activation);
  for (const Range& kept : all(op, OperandUse::kept, out ? Access::read : Access::write)) {
    if (out)
      device_.copy(stream, rest.data + offset, host, kept.data, device, Bytes(kept.bytes));
    else
      device_.copy(stream, kept.data, device, rest.data + offset, host, Bytes(kept.bytes));
    offset += kept.bytes;
  }
}

void StepLauncher::copy_state(const Op& op, StreamId stream) {
  const auto [first, last] = buckets(op);
  const bool out = op.role == OpRole::copy_out;
  const std::int64_t element = size_bytes(state_.parameter_dtype());
  for (std::size_t b = first; b < last; ++b) {
    const std::int64_t on_device = state_.on_device(b), on_host = state_.on_host(b);
    std::byte* const resting = static_cast<std::byte*>(state_.owned_parameter(b).data);
    if (out && !find(op, OperandUse::parameter)) {  // gradients that the host will update with
      const TensorView owned = state_.owned_gradient(b).column_range(on_device, on_host);
      device_.copy(stream, static_cast<std::byte*>(state_.host_gradient(b).data), Space::host,
                   static_cast<const std::byte*>(owned.data), Space::device, Bytes(owned.bytes()));
    } else if (out) {  // what the device has updated, to parameters that rest on the host
      const TensorView made = state_.pending_parameter(b, false);
      if (on_device > 0)
        device_.copy(stream, resting, Space::host, static_cast<const std::byte*>(made.data), Space::device,
                     Bytes(made.bytes()));
    } else if (find(op, OperandUse::optimizer)) {  // what the host has updated
      const TensorView made = state_.pending_parameter(b, true);
      if (on_host > 0)
        device_.copy(stream, resting + on_device * element, Space::device,
                     static_cast<const std::byte*>(made.data), Space::host, Bytes(made.bytes()));
    } else {  // a unit that is fetched
      const Range to = find(op, OperandUse::parameter, Access::write);
      device_.copy(stream, to.data, Space::device, resting, Space::host, Bytes(state_.slice(b) * element));
    }
  }
}

}  // namespace sextant
