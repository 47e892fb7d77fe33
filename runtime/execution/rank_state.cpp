#include "runtime/execution/rank_state.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/error.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/parallel.hpp"
#include "runtime/devices/host_access.hpp"

namespace sextant {

RankState::RankState(const ExecutionGraph& graph, const Arena& arena, const StackRules& rules, RankCoord at)
    : graph_(graph),
      device_(arena.device()),
      layout_(parameter_layout(graph.model, graph.plan, rules, at.pp)),
      parameter_(graph.training.parameter),
      accumulator_(accumulator_of(graph.training.parameter)),
      weights_(shard_weights_of(graph.plan)),
      shard_(shard_of(graph.plan, at)),
      parts_before_(std::accumulate(weights_.begin(), weights_.begin() + shard_, 0)) {
  const ParallelPlan& plan = graph.plan;
  replica_ = (at.dp * plan.cp + at.cp) / layout_.shards;
  tp_rank_ = at.tp;
  const LocalShape local = local_shape(graph.model, plan.tp, rules.vocab_multiple);
  for (Parameter p : layout_.parameters) {
    if (is_copy(p)) p.kind = ParameterKind::embedding;
    slices_.push_back(model_slice(graph.model, local, p, plan.tp, at.tp));
  }

  homes_.resize(layout_.buckets.size());
  for (BufferId id = 0; id < graph.buffers.size(); ++id) {
    const Buffer& buffer = graph.buffers[id];
    if (buffer.stage != at.pp || buffer.bucket == kNone16) continue;
    Home& home = homes_[buffer.bucket];
    const bool host = buffer.kind == BufferKind::host;
    std::byte* data = arena.at(id);
    const auto whole = [&](Dtype dtype) {
      return buffer.bytes == bucket(buffer.bucket).elements * size_bytes(dtype);
    };
    if (buffer.use == OperandUse::parameter) {
      (host ? home.host_parameter : home.parameter) = data;
      home.parameter_whole = whole(parameter_);
    } else if (buffer.use == OperandUse::gradient) {
      (host ? home.host_gradient : home.gradient) = data;
      if (!host) home.gradient_whole = whole(accumulator_);
    } else {
      (host ? home.host_optimizer : home.optimizer) = data;
    }
  }
  for (const bool host : {false, true}) {
    decay_[host].resize(layout_.buckets.size());
    for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
      const ElementRange part = host ? ElementRange{on_device(b), slice(b)} : ElementRange{0, on_device(b)};
      for_each_piece(b, [&](std::size_t p, ElementRange range) {
        if (slices_[p].model_rows == 1) return;  // norms do not decay
        range.begin = std::max(range.begin, part.begin);
        range.end = std::min(range.end, part.end);
        if (range.begin < range.end)
          decay_[host][b].push_back({range.begin - part.begin, range.end - part.begin});
      });
    }
  }
}

std::vector<std::int64_t> RankState::slices(std::size_t b) const {
  std::vector<std::int64_t> all;
  for (const int weight : weights_) all.push_back(part(b) * weight);
  return all;
}

TensorView RankState::owned_parameter(std::size_t b) const {
  const Home& home = homes_[b];
  std::byte* data = home.parameter ? home.parameter : home.host_parameter;
  if (home.parameter_whole) data += slice_begin(b) * size_bytes(parameter_);
  return row(data, parameter_, slice(b));
}

TensorView RankState::owned_gradient(std::size_t b) const {
  std::byte* data = homes_[b].gradient;
  if (homes_[b].gradient_whole) data += slice_begin(b) * size_bytes(accumulator_);
  return row(data, accumulator_, slice(b));
}

TensorView RankState::whole_parameter(std::size_t b) const {
  SEXTANT_CHECK(homes_[b].parameter_whole, "parameters that are fetched are nowhere whole");
  return row(homes_[b].parameter, parameter_, bucket(b).elements);
}

TensorView RankState::host_gradient(std::size_t b) const {
  return row(homes_[b].host_gradient, accumulator_, on_host(b));
}

TensorView RankState::pending_parameter(std::size_t b, bool host) const {
  const std::int64_t n = host ? on_host(b) : on_device(b);
  std::byte* data = host ? homes_[b].host_optimizer : homes_[b].optimizer;
  const std::int64_t fields = parameter_ == accumulator_ ? 2 : 3;
  return row(data + fields * n * size_bytes(accumulator_), parameter_, n);
}

TensorView RankState::field(std::size_t b, bool host, StateField which) const {
  const std::int64_t n = host ? on_host(b) : on_device(b);
  const bool own_master = parameter_ != accumulator_;
  if (which == StateField::master && !own_master) {
    if (graph_.plan.parameter_offload != host) return pending_parameter(b, host);
    return owned_parameter(b).column_range(host ? on_device(b) : 0, n);
  }
  const int index = static_cast<int>(which) - (own_master ? 0 : 1);
  std::byte* data = host ? homes_[b].host_optimizer : homes_[b].optimizer;
  return row(data + index * n * size_bytes(accumulator_), accumulator_, n);
}

AdamwArgs RankState::adamw(std::size_t b, bool host) const {
  AdamwArgs a;
  a.master = field(b, host, StateField::master);
  a.moment1 = field(b, host, StateField::moment1);
  a.moment2 = field(b, host, StateField::moment2);
  a.gradient = host ? host_gradient(b) : owned_gradient(b).column_range(0, on_device(b));
  a.parameter = graph_.plan.parameter_offload != host
                    ? pending_parameter(b, host)
                    : owned_parameter(b).column_range(host ? on_device(b) : 0, a.master.cols);
  a.decay = decay_[host][b];
  return a;
}

void RankState::for_each_piece(std::size_t b, const std::function<void(std::size_t, ElementRange)>& f) const {
  const std::int64_t first = slice_begin(b), last = first + slice(b);
  for (std::uint32_t i = bucket(b).first; i < bucket(b).first + bucket(b).count; ++i) {
    const Parameter& p = layout_.parameters[i];
    const ElementRange range{std::max(p.offset, first) - first,
                             std::min(p.offset + p.elements, last) - first};
    if (range.begin < range.end) f(i, range);
  }
}

void RankState::for_each_counted(std::size_t b, const std::function<void(ElementRange)>& f) const {
  if (replica_ != 0) return;
  for_each_piece(b, [&](std::size_t p, ElementRange range) {
    const Parameter& parameter = layout_.parameters[p];
    if (!is_copy(parameter) && (tp_rank_ == 0 || !slices_[p].replicated)) f(range);
  });
}

bool RankState::is_copy(const Parameter& p) const {
  return graph_.model.tied_embeddings && p.kind == ParameterKind::head;
}

bool RankState::stores(std::size_t b, std::size_t p) const {
  const ParallelPlan& plan = graph_.plan;
  const auto turn = [](std::size_t i, int of) { return static_cast<int>(i % static_cast<std::size_t>(of)); };
  return !is_copy(layout_.parameters[p]) && replica_ == turn(b, plan.replicas() / layout_.shards) &&
         (!slices_[p].replicated || tp_rank_ == turn(p, plan.tp));
}

void RankState::adopt_master(std::size_t b, bool host, const TensorView& master) const {
  const AdamwArgs a = adamw(b, host);
  if (a.parameter.cols > 0 && a.parameter.data != a.master.data) put_values(device_, a.parameter, master);
}

void RankState::initialise(const WeightSource& weights, const KernelTable& kernels, StreamId stream) {
  if (weights.recipe())
    make_weights(weights.recipe(), kernels, stream);
  else
    read_weights(weights, kernels, stream);
}

// What of the weights is on the host is made there, while the device makes the rest.
void RankState::make_weights(const WeightSource::Recipe& recipe, const KernelTable& kernels,
                             StreamId stream) {
  const auto launch = [&]<class Args>(void (*kernel)(const Args&), Args args) {
    device_.launch(stream, [kernel, args](NativeStream native) mutable {
      args.stream = native;
      kernel(args);
    });
  };
  const auto normal = [&](bool host, const RandomNormalArgs& args) {
    host ? cpu_kernels().random_normal(args) : launch(kernels.random_normal, args);
  };
  const auto zero = [&](bool host, const TensorView& x) {
    if (host)
      parallel_for(x.bytes(), 1 << 22, [&](std::int64_t begin, std::int64_t end) {
        std::memset(static_cast<std::byte*>(x.data) + begin, 0, static_cast<std::size_t>(end - begin));
      });
    else if (x.cols > 0)
      launch(kernels.zero, ZeroArgs{.x = x});
  };
  // `to`: the bucket's elements from `first` on.
  const auto fill = [&](std::size_t b, bool host, std::int64_t first, const TensorView& to) {
    std::int64_t filled = 0;
    for (std::uint32_t i = bucket(b).first; i < bucket(b).first + bucket(b).count; ++i) {
      const std::int64_t offset = layout_.parameters[i].offset - first;
      const std::int64_t begin = std::max<std::int64_t>(offset, 0),
                         end = std::min(offset + slices_[i].real_rows() * slices_[i].cols, to.cols);
      if (begin >= end) continue;
      zero(host, to.column_range(filled, begin - filled));  // padding of the parameter before
      normal(host, random_args(recipe(slices_[i]), slices_[i], begin - offset,
                               to.column_range(begin, end - begin)));
      filled = end;
    }
    zero(host, to.column_range(filled, to.cols - filled));
  };
  for (const bool on_host : {false, true})  // the device first: what it is asked for runs on
    for (std::size_t b = 0; b < homes_.size(); ++b) {
      const std::int64_t mine = slice_begin(b);
      const bool resting_on_host = !homes_[b].parameter;
      if (resting_on_host == on_host) {
        if (homes_[b].parameter_whole && homes_[b].parameter)
          fill(b, on_host, 0, whole_parameter(b));
        else
          fill(b, on_host, mine, owned_parameter(b));
      }
      if ((on_host ? this->on_host(b) : on_device(b)) == 0) continue;
      const std::int64_t first = mine + (on_host ? on_device(b) : 0);
      const bool pending = graph_.plan.parameter_offload != on_host;
      if (parameter_ != accumulator_) fill(b, on_host, first, field(b, on_host, StateField::master));
      if (pending) fill(b, on_host, first, pending_parameter(b, on_host));
      zero(on_host, field(b, on_host, StateField::moment1));
      zero(on_host, field(b, on_host, StateField::moment2));
    }
  device_.synchronize(device_.record(stream));
}

void RankState::read_weights(const WeightSource& weights, const KernelTable& kernels, StreamId stream) {
  std::vector<double> values;  // of a bucket, in memory that the next one uses again
  for (std::size_t b = 0; b < homes_.size(); ++b) {
    values.resize(static_cast<std::size_t>(bucket(b).elements));
    auto filled = values.begin();
    for (std::uint32_t i = bucket(b).first; i < bucket(b).first + bucket(b).count; ++i) {
      const Parameter& p = layout_.parameters[i];
      const auto real = static_cast<std::size_t>(slices_[i].real_rows() * slices_[i].cols);
      if (real == 0) continue;
      const auto begin = values.begin() + p.offset;
      std::fill(filled, begin, 0.0);  // padding of the parameter before
      weights(slices_[i], std::span(values).subspan(static_cast<std::size_t>(p.offset), real));
      filled = begin + static_cast<std::ptrdiff_t>(real);
    }
    std::fill(filled, values.end(), 0.0);
    const TensorView whole(values.data(), Dtype::fp64, 1, bucket(b).elements);
    const TensorView owned = whole.column_range(slice_begin(b), slice(b));
    // What is whole on the device in both formats crosses the host's link once.
    const bool narrowed = !device_.unified() && parameter_ != accumulator_ && homes_[b].parameter &&
                          slice(b) == bucket(b).elements && on_host(b) == 0;
    if (!narrowed && homes_[b].parameter_whole && homes_[b].parameter)
      put_values(device_, whole_parameter(b), whole);
    else if (!narrowed)
      put_values(device_, owned_parameter(b), owned);
    for (const bool host : {false, true}) {
      const std::int64_t n = host ? on_host(b) : on_device(b);
      if (n == 0) continue;
      const TensorView part = owned.column_range(host ? on_device(b) : 0, n);
      put_values(device_, field(b, host, StateField::master), part);
      put_zeros(device_, field(b, host, StateField::moment1));
      put_zeros(device_, field(b, host, StateField::moment2));
      if (graph_.plan.parameter_offload != host) put_values(device_, pending_parameter(b, host), part);
    }
    if (!narrowed) continue;
    device_.launch(stream,
                   [cast = kernels.cast, from = field(b, false, StateField::master), to = owned_parameter(b)](
                       NativeStream native) { cast({.source = from, .destination = to, .stream = native}); });
  }
  device_.synchronize(device_.record(stream));
}

namespace {
// The part of `range` of the owned slice that lies in [begin, end).
ElementRange overlap(ElementRange range, std::int64_t begin, std::int64_t end) {
  return {std::max(range.begin, begin), std::min(range.end, end)};
}
}  // namespace

void RankState::read_owned(StateField which,
                           const std::function<void(const OwnedPiece&, std::span<const double>)>& f) const {
  std::vector<double> values;
  for (std::size_t b = 0; b < homes_.size(); ++b)
    for_each_piece(b, [&](std::size_t p, ElementRange range) {
      values.resize(static_cast<std::size_t>(range.end - range.begin));
      for (const bool host : {false, true}) {
        const std::int64_t begin = host ? on_device(b) : 0, end = host ? slice(b) : on_device(b);
        const ElementRange part = overlap(range, begin, end);
        if (part.begin >= part.end) continue;
        TensorView to(values.data() + (part.begin - range.begin), Dtype::fp64, 1, part.end - part.begin);
        get_values(device_, to, field(b, host, which).column_range(part.begin - begin, to.cols));
      }
      f({slices_[p], begin_in_slice(b, p, range)}, values);
    });
}

}  // namespace sextant
