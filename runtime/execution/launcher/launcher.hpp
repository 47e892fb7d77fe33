// What is an op, on this rank? Turns ops of a graph into work for a device: kernels on the op's operands, a collective
// over the op's group, a copy between the memories. Knows the graph's meaning and the model's arithmetic, and of the
// backend nothing but Device, Communicator and KernelTable.
//   blocks.cpp   units of the model        collectives.cpp   groups and transfers
//   head.cpp     logits and loss           state.cpp         gradients, norms, Adam, copies
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/graph/block_tensors.hpp"
#include "core/graph/execution_graph.hpp"
#include "core/plan/stack_spec.hpp"
#include "kernels/blocks.hpp"
#include "kernels/positions.hpp"
#include "runtime/devices/host_access.hpp"
#include "runtime/execution/arena.hpp"
#include "runtime/execution/rank_groups.hpp"
#include "runtime/execution/rank_state.hpp"
#include "runtime/execution/step_batch.hpp"
#include "runtime/execution/step_exchange.hpp"

namespace sextant {

class StepLauncher {
 public:
  // Everything given outlives the launcher.
  StepLauncher(const ExecutionGraph&, const StackRules&, Device&, const Arena&, const RankGroups&, RankState&,
               const KernelTable&, RankCoord, int threads);

  void launch(OpId, StreamId);  // an OpLauncher
  bool runs(OpId) const;        // whether the op has anything to do in this part of a step
  // Whether an op is launched with the same memory and arguments in every step that trains. Tokens and scalars come from one
  // place where the device does not share the host's memory; the head's scale is the step's own.
  bool repeats(OpId) const;

  // Set between steps, read while one runs.
  enum class Part : std::uint8_t {
    whole,
    first,     // nothing to update yet
    flush,     // the update that the last step has left, and nothing else
    evaluate,  // forward to the loss; nothing that training goes on from is touched
  };
  Part part = Part::whole;
  StepBatch batch;
  AdamwScalars scalars;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;

  const KernelTable& kernels() const { return kernels_; }
  void begin_step() {
    exchange_.send(batch, scalars);
    updated_.clear();
  }
  // Makes the updates of the step that was left in its middle, or, where none has begun, that the last step has left. On a CPU,
  // when nothing of the step is under way any more: no update stands half made, as each is one kernel's.
  void complete_updates(bool begun);
  // The loss is of this rank's valid targets, on the last stage; the norm of the global gradient, before clipping.
  StepExchange::Results end_step() { return exchange_.fetch(); }

 private:
  struct Range {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    explicit operator bool() const { return data != nullptr; }
  };
  Range range(const Operand& operand) const;
  enum class Access : std::uint8_t { read, write };
  Range find(const Op&, OperandUse) const;  // the first of this use; empty when there is none
  Range find(const Op&, OperandUse, Access) const;
  std::vector<Range> all(const Op&, OperandUse, Access) const;
  void run(StreamId, std::function<void(const BlockContext&)> work);  // with the context of the stream

  bool evaluates(const Op&) const;  // is part of an evaluation

  // blocks.cpp
  static bool backward(Pass p) {
    return p == Pass::backward || p == Pass::backward_input || p == Pass::backward_weight;
  }
  void block(const Op&, StreamId);
  void embedding(const Op&, const BlockWork&, StreamId);
  void norm(const Op&, const BlockWork&, StreamId);
  void qkv(const Op&, const BlockWork&, StreamId);
  void qk_norm(const Op&, const BlockWork&, StreamId);  // and its sums
  void attention(const Op&, const BlockWork&, StreamId);
  void mlp(const Op&, const BlockWork&, StreamId);
  void residual(const Op&, const BlockWork&, StreamId);
  BlockWork attention_work(const BlockWork&) const;  // of the half-layer: what its lists depend on
  TensorView local(Range, const BlockWork&) const;   // [local tokens, h]
  TensorView full(Range, const BlockWork&) const;    // [tokens, h]
  TensorView normed_of(const Op&, const BlockWork&) const;
  struct Weights {
    std::vector<Range> ranges;
    std::vector<ParameterKind> kinds;  // of each
    Dtype dtype;
    TensorView operator()(ParameterKind, std::int64_t rows, std::int64_t cols) const;  // no data: it has none
  };
  Weights named(BlockKind, const std::vector<Range>& of_op, Dtype) const;
  bool norms_after() const { return graph_.model.norm_placement == NormPlacement::after; }
  std::vector<std::pair<TensorView, TensorView>> stream_copies(const Op&, const BlockWork&) const;
  static QkNormKept qk_norms(const BlockWork&, const TensorSet& kept);
  AttentionWeights attention_weights(const BlockWork&, const std::vector<Range>& of_op, Dtype) const;
  MlpWeights mlp_weights(const BlockWork&, const std::vector<Range>& of_op, Dtype) const;
  TensorView weight(Range, Dtype, std::int64_t rows, std::int64_t cols) const;
  std::vector<Range> gradients(const Op&) const;
  // Whether the op overwrites them: a ring's buffer holds what another bucket has left. GEMMs do so themselves.
  bool overwrites(const Op&) const;
  std::vector<Range> replaced(const Op&) const;  // what of them has to be zero before
  void set_zero(const BlockContext&, const std::vector<Range>& gradients) const;

  // head.cpp
  void head(const Op&, const BlockWork&, StreamId);
  bool gradient_is_whole(const Op&) const;
  struct HeadBackward {  // what the backward of the head reads and writes beside its unit
    TensorView stats, softmax, dnormed;
  };
  void head_backward_input(const HeadUnit&, const HeadBackward&, const TensorView& dlogits, StreamId);
  void head_backward_half(const Op&, const BlockWork&, StreamId);
  // Loss and both gradients in one sweep over the logits, by the backward op: the forward op has nothing to do then. Not
  // when other ranks have a part in a row's statistic, nor when the gradients are made apart.
  bool head_in_one_sweep() const {
    return part != Part::evaluate && graph_.plan.tp == 1 &&
           graph_.plan.schedule != PipelineSchedule::zero_bubble;
  }

  // collectives.cpp
  void activation_collective(const Op&, OpId, StreamId);
  void state_collective(const Op&, OpId, StreamId);
  void transfer(const Op&, OpId, StreamId);

  // state.cpp
  void zero(const Op&, StreamId);
  void accumulate(const Op&, StreamId);
  void norm_partial(const Op&, StreamId);
  void norm_reduce(const Op&, OpId, StreamId);
  void update(const Op&, StreamId);
  void adamw(std::size_t bucket, bool host, const AdamwScalars*, NativeStream);
  void copy(const Op&, StreamId);
  void copy_state(const Op&, StreamId);
  std::pair<std::size_t, std::size_t> buckets(const Op&) const;  // [first, last)
  bool of_state(const Op& op) const { return op.layer == kNone16 && op.chunk == 0 && op.pass == Pass::none; }

  const ExecutionGraph& graph_;
  const StackRules& rules_;
  Device& device_;
  const Arena& arena_;
  const RankGroups& groups_;
  RankState& state_;
  const KernelTable& kernels_;
  RankCoord at_;
  BlockWork extents_;  // of this rank's blocks
  RopeTable rope_;
  SlopeTable slopes_;
  std::vector<std::int32_t> positions_, key_positions_;
  std::vector<Mirror> mirrors_;  // of the above
  StepExchange exchange_;
  std::mutex updated_mutex_;
  std::set<std::pair<std::size_t, bool>> updated_;  // in this step: buckets' parts, of the host or not
  BlockContext context_;
  Fp8Weights fp8_weights(const Op&, const BlockWork&) const;
  Mirror largest_;                     // of weights in fp8, where kernels keep them
  Fp8Weights of_unit_ = {};            // of the op that is launched
  std::byte* scratch_ = nullptr;       // of the stage
  std::byte* head_scratch_ = nullptr;  // of the head's stage
};

}  // namespace sextant
