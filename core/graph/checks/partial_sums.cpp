#include "core/graph/checks/partial_sums.hpp"

#include <algorithm>

namespace sextant::checks {
namespace {

constexpr OpId kNoWriter = std::numeric_limits<OpId>::max();

// Whether gradients of inputs are made.
bool is_backward(Pass pass) { return pass == Pass::backward || pass == Pass::backward_input; }

// Each TP rank makes a part of the sum: in the forward pass the rows of the embedding, the output projection and the
// second MLP matrix; in the backward pass the inputs of the column-parallel GEMMs (Shoeybi et al. 2019, arXiv
// 1909.08053, fig. 3).
bool partial_over_tp(BlockKind kind, Pass pass) {
  if (pass == Pass::forward || pass == Pass::recompute)
    return kind == BlockKind::embedding || kind == BlockKind::attention || kind == BlockKind::mlp;
  if (is_backward(pass)) return kind == BlockKind::qkv || kind == BlockKind::mlp || kind == BlockKind::head;
  return false;
}
// What reads the gradients of keys and values first.
BlockKind first_reader_of_keys(const ExecutionGraph& g) {
  if (g.model.qk_norm == QkNorm::none) return BlockKind::qkv;
  return norms_over_ranks(g.model.qk_norm, g.plan.tp) ? BlockKind::qk_sums : BlockKind::qk_norm;
}
// Gradients of keys and values that other CP ranks' queries saw.
bool partial_over_cp(BlockKind kind, Pass pass) { return kind == BlockKind::attention && is_backward(pass); }

bool same_site(const Op& a, const Op& b) {
  return a.microbatch == b.microbatch && a.chunk == b.chunk && a.layer == b.layer;
}

class Activations {
 public:
  Activations(const ExecutionGraph& g, ProblemList& problems)
      : graph_(g), problems_(problems), next_(g.operands.size(), kNoWriter), state_(g.buffers.size(), false) {
    // Backwards: who touches the operand's buffer next.
    std::vector<OpId> later(g.buffers.size(), kNoWriter);
    for (OpId i = static_cast<OpId>(g.ops.size()); i-- > 0;) {
      const Op& op = g.ops[i];
      for (std::uint32_t o = op.operand_begin; o < op.operand_begin + op.operand_count; ++o)
        next_[o] = later[g.operands[o].buffer];
      for (const Operand& o : g.operands_of(op)) later[o.buffer] = i;
      // Buffers of bucket-wise ops are parameters and gradients, the norm's belong to no micro-batch.
      if (op.bucket != kNone16)
        for (const Operand& o : g.operands_of(op)) state_[o.buffer] = true;
    }
    for (BufferId b = 0; b < g.buffers.size(); ++b) {
      const BufferKind kind = g.buffers[b].kind;
      if (g.buffers[b].resident && kind != BufferKind::communication && kind != BufferKind::activation)
        state_[b] = true;
    }
  }

  void run() {
    std::vector<OpId> writer(graph_.buffers.size(), kNoWriter);
    for (OpId i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      if (const auto* block = std::get_if<BlockWork>(&graph_.works[op.work]);
          block && op.role == OpRole::block) {
        if (graph_.plan.tp > 1 && partial_over_tp(block->kind, op.pass))
          added_up(i, OpRole::tp_reduce, OpRole::tp_scatter, "its sum over tp next");
        if (graph_.plan.cp > 1 && partial_over_cp(block->kind, op.pass) && writes_keys(op))
          added_up(i, OpRole::cp_scatter, OpRole::cp_scatter, "its sum over cp next");
        if (block->kind == BlockKind::qk_sums)
          added_up(i, OpRole::tp_reduce, OpRole::tp_reduce, "its sum over tp next");
        if (graph_.model.norm_placement == NormPlacement::after && is_backward(op.pass) &&
            op.layer != kNone16 && (block->kind == BlockKind::qkv || block->kind == BlockKind::mlp))
          joins_stream(i);
        if (block->kind == BlockKind::qk_norm && norms_over_ranks(graph_.model.qk_norm, graph_.plan.tp))
          comes_from(i, writer, OpRole::tp_reduce, "norms over heads of which others have a part",
                     "a tp_reduce of the rows' sums before it");
        if (graph_.plan.cp > 1 && block->kind == first_reader_of_keys(graph_) && is_backward(op.pass))
          comes_from(i, writer, OpRole::cp_scatter,
                     "gradients of keys and values that nothing adds up over cp", "a cp_scatter before it");
      }
      if (op.role == OpRole::tp_reduce) sums_of_norms(i, writer);
      if (op.role == OpRole::send && op.pass == Pass::forward)
        for (const Operand& o : graph_.operands_of(op))
          if (!o.write) whole_stream(i, writer[o.buffer]);
      for (const Operand& o : graph_.operands_of(op))
        if (!o.write && !state_[o.buffer] && writer[o.buffer] != kNoWriter)
          own(i, o.buffer, writer[o.buffer]);
      for (const Operand& o : graph_.operands_of(op))
        if (o.write) writer[o.buffer] = i;
    }
  }

 private:
  // One of the buffers that op i writes is next touched by a sum.
  void added_up(OpId i, OpRole a, OpRole b, const char* expected) {
    const Op& op = graph_.ops[i];
    for (std::uint32_t o = op.operand_begin; o < op.operand_begin + op.operand_count; ++o) {
      if (!graph_.operands[o].write || next_[o] == kNoWriter) continue;
      const Op& next = graph_.ops[next_[o]];
      if ((next.role == a || next.role == b) && same_site(next, op)) return;
    }
    problems_.add(i, "a partial sum that nothing adds up", expected);
  }

  // With norms behind the GEMMs, the gradient of a GEMM's input is added to the stream's, once it is a whole sum.
  void joins_stream(OpId i) {
    const Op& op = graph_.ops[i];
    OpId at = i;
    for (int steps = 0; steps < 2; ++steps) {
      OpId next = kNoWriter;
      for (std::uint32_t o = graph_.ops[at].operand_begin;
           o < graph_.ops[at].operand_begin + graph_.ops[at].operand_count; ++o)
        if (graph_.operands[o].write && (at != i || graph_.operands[o].use == OperandUse::dx))
          next = next_[o];
      if (next == kNoWriter || !same_site(graph_.ops[next], op)) break;
      const auto* block = std::get_if<BlockWork>(&graph_.works[graph_.ops[next].work]);
      if (block && block->kind == BlockKind::residual) return;
      at = next;
    }
    problems_.add(i, "a gradient that nothing adds to the stream's", "a residual behind it");
  }

  // What is reduced of what a layer keeps or passes on are sums that its ranks have just made.
  void sums_of_norms(OpId i, const std::vector<OpId>& writer) {
    const Op& op = graph_.ops[i];
    for (const Operand& o : graph_.operands_of(op)) {
      if (o.write || (o.use != OperandUse::kept && o.use != OperandUse::dqkv)) continue;
      const OpId from = writer[o.buffer];
      const auto* block =
          from == kNoWriter ? nullptr : std::get_if<BlockWork>(&graph_.works[graph_.ops[from].work]);
      problems_.require(block && block->kind == BlockKind::qk_sums && same_site(graph_.ops[from], op), i,
                        "qk_sums of its layer before it", [&] {
                          return from == kNoWriter ? std::string("no writer") : op_label(graph_, from);
                        });
    }
  }

  bool writes_keys(const Op& op) const {
    return std::ranges::any_of(graph_.operands_of(op),
                               [](const Operand& o) { return o.write && o.use == OperandUse::dkeys; });
  }

  // Something that op i reads was added up by a collective: gradients of keys and values over cp, behind attention or on their
  // way round; sums of norms over tp.
  void comes_from(OpId i, const std::vector<OpId>& writer, OpRole role, const char* found,
                  const char* expected) {
    const Op& op = graph_.ops[i];
    for (const Operand& o : graph_.operands_of(op)) {
      const OpId from = o.write ? kNoWriter : writer[o.buffer];
      if (from != kNoWriter && graph_.ops[from].role == role && same_site(graph_.ops[from], op)) return;
    }
    problems_.add(i, found, expected);
  }

  // A chunk sends its stream on once its last branch is added.
  void whole_stream(OpId send, OpId writer) {
    const auto* block =
        writer == kNoWriter ? nullptr : std::get_if<BlockWork>(&graph_.works[graph_.ops[writer].work]);
    const bool after =
        graph_.model.norm_placement == NormPlacement::after;  // the last norm of the chunk has added it
    const bool adds = block && block->kind == (after ? BlockKind::norm : BlockKind::residual);
    const bool here = adds && (after ? graph_.ops[writer].chunk == graph_.ops[send].chunk &&
                                           graph_.ops[writer].microbatch == graph_.ops[send].microbatch
                                     : same_site(graph_.ops[writer], graph_.ops[send]));
    problems_.require(here, send, "the residual of its chunk before it", [&] {
      return writer == kNoWriter ? std::string("no writer") : op_label(graph_, writer);
    });
  }

  // What op i reads was written for the same micro-batch; in a ring of buffers also for the same layer.
  void own(OpId i, BufferId buffer, OpId writer) {
    const Op &reader = graph_.ops[i], &from = graph_.ops[writer];
    const bool fits =
        reader.microbatch == from.microbatch && (!graph_.buffers[buffer].resident || same_site(reader, from));
    problems_.require(fits, i, "what its own micro-batch and layer wrote",
                      [&] { return fmt::format("buffer {} by {}", buffer, op_label(graph_, writer)); });
  }

  const ExecutionGraph& graph_;
  ProblemList& problems_;
  std::vector<OpId> next_;   // by operand
  std::vector<bool> state_;  // by buffer: not an activation
};

}  // namespace

void check_partial_sums(const ExecutionGraph& g, ProblemList& problems) { Activations(g, problems).run(); }

}  // namespace sextant::checks
