#include "runtime/execution/launcher/launcher.hpp"

#include "core/base/error.hpp"
#include "core/graph/op_groups.hpp"
#include "runtime/execution/device_memory.hpp"

namespace sextant {

StepLauncher::StepLauncher(const ExecutionGraph& graph, const StackRules& rules, Device& device,
                           const Arena& arena, const RankGroups& groups, RankState& state,
                           const KernelTable& kernels, RankCoord at, int threads)
    : graph_(graph),
      rules_(rules),
      device_(device),
      arena_(arena),
      groups_(groups),
      state_(state),
      kernels_(kernels),
      at_(at),
      extents_(block_extents(graph.model, graph.training, graph.plan,
                             local_shape(graph.model, graph.plan.tp, rules.vocab_multiple), rules)),
      rope_(graph.model, graph.training.seq_len, accumulator_of(graph.training.compute)),
      slopes_(graph.model, extents_.heads * at.tp, extents_.heads, accumulator_of(graph.training.compute)),
      positions_(context_positions(graph.training.seq_len, graph.plan.cp, at.cp)),
      key_positions_(gathered_positions(graph.training.seq_len, graph.plan.cp)),
      exchange_(device, state.layout().buckets.size(),
                static_cast<std::size_t>(microbatches(graph.plan, graph.training)),
                positions_.size() * static_cast<std::size_t>(graph.plan.micro_batch)) {
  const auto table = [&](TensorView x) {
    x.data = mirrors_.emplace_back(device, x.data, Bytes(x.bytes())).data();
    return x;
  };
  const auto list = [&](std::span<const std::int32_t> x) -> std::span<const std::int32_t> {
    mirrors_.emplace_back(device, x.data(), Bytes(static_cast<std::int64_t>(x.size_bytes())));
    return {static_cast<const std::int32_t*>(mirrors_.back().data()), x.size()};
  };
  extents_.dtype = kept_as(extents_.dtype);
  const bool turns = graph.model.position == PositionKind::rope;
  context_ = {.kernels = &kernels,
              .norm_eps = graph.model.norm_eps,
              .rope_cos = turns ? table(rope_.cos()) : TensorView(),
              .rope_sin = turns ? table(rope_.sin()) : TensorView(),
              .positions = list(positions_),
              .key_positions = list(key_positions_),
              .slopes = turns ? TensorView() : table(slopes_.view()),
              .fp8 = graph.training.compute == Dtype::fp8,
              .adds_biases = at.tp == 0,
              .cp = graph.plan.cp,
              .threads = threads};
  if (const std::int64_t bytes = fp8_table_bytes(graph); bytes > 0 && takes_scratch(kernels))
    largest_ = Mirror(device, std::vector<std::byte>(static_cast<std::size_t>(bytes)).data(), Bytes(bytes));
  for (BufferId id = 0; id < graph.buffers.size(); ++id) {
    const Buffer& buffer = graph.buffers[id];
    if (buffer.stage == at.pp && buffer.scratch)
      (buffer.kind == BufferKind::logits ? head_scratch_ : scratch_) = arena.at(id);
  }
}

bool StepLauncher::runs(OpId id) const {
  const Op& op = graph_.ops[id];
  if (left_out(graph_.plan, op, at_.dp)) return false;
  const bool updates = op.role == OpRole::update ||
                       ((op.role == OpRole::copy_out || op.role == OpRole::copy_in) && of_state(op));
  const bool gathers = op.role == OpRole::param_gather && !fetches_parameters(graph_.plan, rules_);
  const bool fetches = op.role == OpRole::copy_in && fetches_parameters(graph_.plan, rules_);
  if (part == Part::evaluate) return evaluates(op);
  if (part == Part::first) return op.role != OpRole::update;
  if (part != Part::flush) return true;
  // In a flush the copy of gradients to the host, which ends a step, has been made already.
  return !fetches && (updates || gathers) && (op.role != OpRole::copy_out || find(op, OperandUse::parameter));
}

void StepLauncher::launch(OpId id, StreamId stream) {
  if (!runs(id)) return;
  const Op& op = graph_.ops[id];
  switch (op.role) {
    case OpRole::block:
      return block(op, stream);
    case OpRole::tp_gather:
    case OpRole::tp_scatter:
    case OpRole::tp_reduce:
    case OpRole::cp_gather:
    case OpRole::cp_scatter:
      return activation_collective(op, id, stream);
    case OpRole::send:
      return transfer(op, id, stream);
    case OpRole::param_gather:
    case OpRole::grad_reduce:
    case OpRole::grad_replica_reduce:
    case OpRole::tied_reduce:
    case OpRole::sp_reduce:
      return state_collective(op, id, stream);
    case OpRole::grad_accumulate:
      return accumulate(op, stream);
    case OpRole::norm_partial:
      return norm_partial(op, stream);
    case OpRole::norm_reduce:
      return norm_reduce(op, id, stream);
    case OpRole::update:
      return update(op, stream);
    case OpRole::copy_out:
    case OpRole::copy_in:
      return copy(op, stream);
    case OpRole::zero_grad:
      return zero(op, stream);
  }
}

// Forward passes, and what fetches their parameters where they do not stand whole. The loss is made by the head's
// backward op. Depends on the op alone, so all ranks leave out the same. Gradients are sent from stage to stage all the
// same: that one stage does not run ahead of the next and overwrite what it reads is what these transfers are waited for.
bool StepLauncher::evaluates(const Op& op) const {
  if (op.role == OpRole::send) return true;
  if (op.pass == Pass::none)
    return fetches_parameters(graph_.plan, rules_) &&
           (op.role == OpRole::param_gather ||
            (op.role == OpRole::copy_in && !find(op, OperandUse::optimizer)));
  if (op.pass == Pass::forward) return true;
  const auto* work = std::get_if<BlockWork>(&graph_.works[op.work]);
  return op.role == OpRole::block && work->kind == BlockKind::head && op.pass != Pass::backward_weight;
}

bool StepLauncher::repeats(OpId id) const {
  const Op& op = graph_.ops[id];
  if (device_.unified() || left_out(graph_.plan, op, at_.dp)) return false;
  if (op.role == OpRole::grad_accumulate || op.role == OpRole::norm_partial || op.role == OpRole::zero_grad)
    return true;
  return op.role == OpRole::block && std::get<BlockWork>(graph_.works[op.work]).kind != BlockKind::head;
}

StepLauncher::Range StepLauncher::range(const Operand& operand) const {
  return {arena_.at(operand.buffer) + operand.begin, operand.end - operand.begin};
}

StepLauncher::Range StepLauncher::find(const Op& op, OperandUse use) const {
  for (const Operand& operand : graph_.operands_of(op))
    if (operand.use == use && graph_.buffers[operand.buffer].stage == at_.pp) return range(operand);
  return {};
}

StepLauncher::Range StepLauncher::find(const Op& op, OperandUse use, Access access) const {
  for (const Operand& operand : graph_.operands_of(op))
    if (operand.use == use && operand.write == (access == Access::write) &&
        graph_.buffers[operand.buffer].stage == at_.pp)
      return range(operand);
  return {};
}

std::vector<StepLauncher::Range> StepLauncher::all(const Op& op, OperandUse use, Access access) const {
  std::vector<Range> found;
  for (const Operand& operand : graph_.operands_of(op))
    if (operand.use == use && operand.write == (access == Access::write)) found.push_back(range(operand));
  return found;
}

void StepLauncher::run(StreamId stream, std::function<void(const BlockContext&)> work) {
  device_.launch(stream, [this, work = std::move(work), of_unit = of_unit_](NativeStream native) {
    BlockContext context = context_;
    context.fp8_weights = of_unit;
    context.stream = native;
    work(context);
  });
}

}  // namespace sextant
