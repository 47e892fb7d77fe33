// The one description of a training step: operations in issue order, each on a lane (one stream of one
// stage), with explicit dependencies and the byte ranges it reads and writes. Simulated, executed and checked
// from this value. Ops are those of ONE representative rank per stage; the ranks of a stage (tp x cp x dp)
// instantiate them.
//
// Time: a step runs from clip to clip. It begins when the global gradient norm of the previous step is known:
// update (Adam) and parameter gather, first-used bucket first; then forward and backward of all
// micro-batches; gradient reduction; the norm. So the makespan is the steady-state period, and the next
// forward may start while later buckets are still being updated. The runtime's first step skips phase
// `update`, its last flushes it.
//
// Invariant: ops are stored in a topological order of (deps + order on each lane); op id == index; every dep
// points to an earlier op. Simulating and issuing are one forward pass.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/graph/work.hpp"
#include "core/model/model_spec.hpp"
#include "core/model/training_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant {

using OpId = std::uint32_t;
using WorkId = std::uint16_t;
using LaneId = std::uint16_t;
using BufferId = std::uint32_t;
inline constexpr LaneId kNoLane = std::numeric_limits<LaneId>::max();
inline constexpr std::uint16_t kNone16 = std::numeric_limits<std::uint16_t>::max();

// One stream of a stage. A non-overlapped collective runs on `compute`; that is what "not overlapped" means.
enum class LaneKind : std::uint8_t {
  compute,
  tp,
  cp,
  grad_reduce,
  param_gather,
  send_next,
  recv_prev,  // activations, towards later stages
  send_prev,
  recv_next,  // gradients, towards earlier stages
  device_to_host,
  host_to_device,
  host,
};
inline constexpr int kLaneKinds = 12;

enum class OpRole : std::uint8_t {
  block,  // BlockWork
  tp_gather,
  tp_scatter,
  tp_reduce,  // all-gather, reduce-scatter, all-reduce of activations over tp
  cp_gather,
  cp_scatter,           // keys and values over cp, and their gradients
  send,                 // stage to stage; holds a lane of both ends
  param_gather,         // all-gather of a bucket's parameters over its shards
  grad_reduce,          // reduce-scatter (or all-reduce) of a bucket's gradients over its shards
  grad_replica_reduce,  // all-reduce of the owned slice over replica groups (hybrid sharding)
  grad_accumulate,  // add the reduced slice into its accumulator (reduction in every micro-batch), or what a
                    // tied head has summed to its embedding's gradient
  tied_reduce,      // embedding gradients of first and last stage
  sp_reduce,        // norm-weight gradients that are partial under SP, over tp
  norm_partial,     // squared sum of a bucket's owned slice
  norm_reduce,      // all-reduce of the squared sum over the world; the end of the step
  update,           // Adam of a bucket's owned slice
  copy_out,
  copy_in,  // device to host, host to device
  zero_grad,
};

struct Lane {
  std::uint16_t stage = 0;
  LaneKind kind = LaneKind::compute;
};

enum class BufferKind : std::uint8_t {
  parameter,
  gradient,
  optimizer_state,
  activation,
  logits,
  communication,
  workspace,
  host,
};
inline constexpr int kBufferKinds = 8;

// What an operand is to its op, so that whoever carries the op out need not guess.
enum class OperandUse : std::uint8_t {
  parameter,  // in the order of parameters_of: down, up, gate; v, k, q
  gradient,
  optimizer,
  norm,        // squared sums
  stream,      // residual stream, or its gradient
  branch,      // what the next norm adds to the stream
  kept,        // saved tensors of a half-layer or of the head
  input,       // stream kept for a recomputation
  gathered,    // normed of all tokens
  keys,        // keys and values of the whole sequence
  dkeys,       // their gradients
  out,         // result of a tensor-parallel region
  dout,        // its gradient
  dx,          // gradient of what went in
  dqkv,        // gradients of q, keys and values
  deferred,    // for the weight half
  loss,        // what the head keeps for its backward
  stats,       // of the loss, all tp ranks'
  activation,  // of a transfer
  copies,      // of gradients, while the optimizer updates
};

struct Buffer {
  BufferKind kind = BufferKind::activation;
  std::uint16_t stage = 0;
  bool resident = false;  // lives for the whole step; otherwise from its first writer to its last reader
  bool scratch = false;   // working memory of the kernels on the compute lane: no op names it
  OperandUse use = OperandUse::activation;  // of a bucket's state: parameter, gradient or optimizer
  std::uint16_t bucket = kNone16;           // whose state it is
  std::int64_t bytes = 0;
};

// A byte range of a buffer that an op touches.
struct Operand {
  BufferId buffer = 0;
  OperandUse use = OperandUse::stream;
  bool write = false;
  std::int64_t begin = 0, end = 0;
};

struct Op {
  OpRole role = OpRole::block;
  Pass pass = Pass::none;
  std::uint16_t stage = 0;
  std::uint16_t chunk = 0;         // model chunk, 0 .. pp*vp-1
  std::uint16_t layer = kNone16;   // decoder layer of the model
  std::uint16_t bucket = kNone16;  // index among the stage's buckets
  std::uint16_t microbatch = kNone16;
  WorkId work = 0;
  std::array<LaneId, 2> lanes{kNoLane, kNoLane};  // the second only for a transfer that holds both ends
  std::uint32_t dep_begin = 0, operand_begin = 0;
  std::uint16_t dep_count = 0, operand_count = 0;
};

struct ExecutionGraph {
  ModelSpec model;
  TrainingSpec training;
  ParallelPlan plan;
  std::vector<Work> works;
  std::vector<Lane> lanes;
  std::vector<Buffer> buffers;  // empty when lowered for timing only
  std::vector<Op> ops;
  std::vector<OpId> deps;         // op.dep_begin .. + dep_count
  std::vector<Operand> operands;  // op.operand_begin .. + operand_count; empty when lowered for timing only

  std::span<const OpId> deps_of(const Op& op) const { return {deps.data() + op.dep_begin, op.dep_count}; }
  std::span<const Operand> operands_of(const Op& op) const {
    return {operands.data() + op.operand_begin, op.operand_count};
  }
};

// "attention fwd L3 mb2", "grad_reduce b4": what logs, traces and hang reports print.
std::string op_name(const ExecutionGraph&, OpId);
std::string_view name(OpRole);
std::string_view name(LaneKind);
std::string_view name(BufferKind);

// FNV-1a over everything but operands' values: predicted and measured timelines join only when it agrees.
std::uint64_t graph_hash(const ExecutionGraph&);

}  // namespace sextant
