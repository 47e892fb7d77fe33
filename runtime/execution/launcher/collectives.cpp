// Groups and transfers: which bytes of the op's operands, over which communicator.
#include "core/base/error.hpp"
#include "runtime/execution/launcher/launcher.hpp"

namespace sextant {
namespace {

std::vector<std::int64_t> even(std::int64_t total, int parts) {
  SEXTANT_CHECK(total % parts == 0, "slices of a group are equal");
  return std::vector<std::int64_t>(static_cast<std::size_t>(parts), total / parts);
}

}  // namespace

void StepLauncher::activation_collective(const Op& op, OpId id, StreamId stream) {
  Communicator* group = groups_.of(id);
  const Dtype dtype = kept_as(graph_.training.compute);
  const auto operands = graph_.operands_of(op);
  const Operand *source = nullptr, *target = nullptr;
  for (const Operand& o : operands) (o.write ? target : source) = &o;
  SEXTANT_CHECK(source && target, "an exchange reads one range and writes one");
  const Range from = range(*source), to = range(*target);
  switch (op.role) {
    case OpRole::tp_reduce: {
      // Sums of norms of q and k, in their place among what a layer keeps or passes on.
      if (source->use == OperandUse::kept || source->use == OperandUse::dqkv) {
        const BlockWork half = attention_work(extents_);
        const TensorView sums = source->use == OperandUse::kept
                                    ? TensorSet(saved_tensors(half), from.data)["qk_rms"]
                                    : TensorSet(passed_tensors(half), from.data)["sums"];
        return device_.launch(stream, [=](NativeStream s) {
          group->all_reduce(sums.data, sums.data, sums.elements(), sums.dtype, Reduction::sum, s);
        });
      }
      const std::int64_t n = from.bytes / size_bytes(dtype);
      return device_.launch(stream, [=](NativeStream s) {
        group->all_reduce(from.data, to.data, n, dtype, Reduction::sum, s);
      });
    }
    case OpRole::tp_scatter: {
      const auto counts = even(from.bytes / size_bytes(dtype), group->size());
      return device_.launch(stream, [=](NativeStream s) {
        group->reduce_scatter(from.data, to.data, counts, dtype, Reduction::sum, s);
      });
    }
    case OpRole::tp_gather: {
      TensorView own = local(from, extents_);
      if (source->use == OperandUse::kept) own = TensorSet(norm_tensors(extents_), from.data)["normed"];
      if (source->use == OperandUse::loss) own = TensorSet(loss_tensors(extents_), from.data)["stats"];
      const auto bytes = even(own.bytes() * group->size(), group->size());
      return device_.launch(stream, [=](NativeStream s) { group->all_gather(own.data, to.data, bytes, s); });
    }
    case OpRole::cp_gather: {
      const TensorView kv = TensorSet(saved_tensors(attention_work(extents_)), from.data)["kv"];
      const auto bytes = even(kv.bytes() * group->size(), group->size());
      return device_.launch(stream, [=](NativeStream s) { group->all_gather(kv.data, to.data, bytes, s); });
    }
    default: {
      SEXTANT_CHECK(op.role == OpRole::cp_scatter, "an exchange of activations");
      const TensorView dkv = TensorSet(passed_tensors(attention_work(extents_)), to.data)["dkv"];
      const auto counts = even(dkv.elements() * group->size(), group->size());
      return device_.launch(stream, [=](NativeStream s) {
        group->reduce_scatter(from.data, dkv.data, counts, dtype, Reduction::sum, s);
      });
    }
  }
}

void StepLauncher::transfer(const Op& op, OpId id, StreamId stream) {
  Communicator* ends = groups_.of(id);
  const bool sends = op.stage == at_.pp;
  const Range data = find(op, OperandUse::activation, sends ? Access::read : Access::write);
  SEXTANT_CHECK(data, "a transfer has a buffer at either end");
  device_.launch(stream, [=](NativeStream s) {
    if (sends)
      ends->send(data.data, data.bytes, 1, s);
    else
      ends->recv(data.data, data.bytes, 0, s);
  });
}

void StepLauncher::state_collective(const Op& op, OpId id, StreamId stream) {
  Communicator* group = groups_.of(id);
  const Dtype gradient = state_.accumulator(), parameter = state_.parameter_dtype();
  const auto b = static_cast<std::size_t>(op.bucket);
  const auto sum = [&](TensorView x) {
    device_.launch(stream, [=](NativeStream s) {
      group->all_reduce(x.data, x.data, x.elements(), gradient, Reduction::sum, s);
    });
  };
  switch (op.role) {
    case OpRole::param_gather: {
      const Range from = find(op, OperandUse::parameter, Access::read),
                  to = find(op, OperandUse::parameter, Access::write);
      auto bytes = state_.slices(b);
      for (std::int64_t& slice : bytes) slice *= size_bytes(parameter);
      // Of a bucket that stands whole, the rank's own slice; of what is fetched, the range itself.
      std::byte* own = fetches_parameters(graph_.plan, rules_)
                           ? from.data
                           : static_cast<std::byte*>(state_.owned_parameter(b).data);
      return device_.launch(stream, [=](NativeStream s) { group->all_gather(own, to.data, bytes, s); });
    }
    case OpRole::grad_reduce: {
      const Range whole = find(op, OperandUse::gradient, Access::read);
      const std::int64_t n = state_.bucket(b).elements;
      if (state_.layout().shards == 1) return sum(TensorView(whole.data, gradient, 1, n));
      const auto counts = state_.slices(b);
      std::byte* own = whole.data + state_.slice_begin(b) * size_bytes(gradient);
      return device_.launch(stream, [=](NativeStream s) {
        group->reduce_scatter(whole.data, own, counts, gradient, Reduction::sum, s);
      });
    }
    case OpRole::grad_replica_reduce: {
      const Range first =
          find(op, OperandUse::gradient, Access::read);  // the bucket's beginning stands for a slice
      return sum(TensorView(first.data + state_.slice_begin(b) * size_bytes(gradient), gradient, 1,
                            state_.slice(b)));
    }
    case OpRole::tied_reduce: {
      const Range r = find(op, OperandUse::gradient, Access::read);
      return sum(TensorView(r.data, gradient, 1, r.bytes / size_bytes(gradient)));
    }
    default:
      SEXTANT_CHECK(op.role == OpRole::sp_reduce, "an exchange of state");
      for (const Range& r : all(op, OperandUse::gradient, Access::read))
        sum(TensorView(r.data, gradient, 1, r.bytes / size_bytes(gradient)));
  }
}

}  // namespace sextant
