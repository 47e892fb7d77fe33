#include "core/graph/checks/graph_check.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/graph/checks/problem_list.hpp"

namespace sextant {
namespace {

using checks::ProblemList;

// Done by the ranks of one replica, and to no state that outlives its micro-batch.
bool within_replica(const Op& op) {
  switch (op.role) {
    case OpRole::block:
    case OpRole::tp_gather:
    case OpRole::tp_scatter:
    case OpRole::tp_reduce:
    case OpRole::cp_gather:
    case OpRole::cp_scatter:
    case OpRole::send:
      return true;
    case OpRole::copy_out:
    case OpRole::copy_in:
      return op.bucket == kNone16;  // activations
    case OpRole::param_gather:
    case OpRole::grad_reduce:
    case OpRole::grad_replica_reduce:
    case OpRole::grad_accumulate:
    case OpRole::tied_reduce:
    case OpRole::sp_reduce:
    case OpRole::norm_partial:
    case OpRole::norm_reduce:
    case OpRole::update:
    case OpRole::zero_grad:
      break;
  }
  return false;
}

bool fits_role(const Work& work, const Op& op) {
  switch (op.role) {
    case OpRole::block: {
      const auto* block = std::get_if<BlockWork>(&work);
      return block && block->pass == op.pass;
    }
    case OpRole::tp_gather:
    case OpRole::cp_gather:
    case OpRole::param_gather: {
      const auto* c = std::get_if<CollectiveWork>(&work);
      return c && c->kind == CollectiveKind::all_gather;
    }
    case OpRole::tp_scatter:
    case OpRole::cp_scatter: {
      const auto* c = std::get_if<CollectiveWork>(&work);
      return c && c->kind == CollectiveKind::reduce_scatter;
    }
    case OpRole::grad_reduce: {
      const auto* c = std::get_if<CollectiveWork>(&work);
      return c && c->kind != CollectiveKind::all_gather;
    }
    case OpRole::tp_reduce:
    case OpRole::grad_replica_reduce:
    case OpRole::tied_reduce:
    case OpRole::sp_reduce:
    case OpRole::norm_reduce: {
      const auto* c = std::get_if<CollectiveWork>(&work);
      return c && c->kind == CollectiveKind::all_reduce;
    }
    case OpRole::send:
      return std::holds_alternative<TransferWork>(work);
    case OpRole::copy_out:
    case OpRole::copy_in: {
      const auto* c = std::get_if<CopyWork>(&work);
      return c && (c->direction == CopyDirection::device_to_host) == (op.role == OpRole::copy_out);
    }
    case OpRole::update:
    case OpRole::norm_partial:
    case OpRole::grad_accumulate:
    case OpRole::zero_grad: {
      const auto* s = std::get_if<StateWork>(&work);
      const StateKind kind = op.role == OpRole::update         ? StateKind::update
                             : op.role == OpRole::norm_partial ? StateKind::norm
                             : op.role == OpRole::zero_grad    ? StateKind::zero
                                                               : StateKind::accumulate;
      return s && s->kind == kind;
    }
  }
  return false;
}

class Form {
 public:
  explicit Form(const ExecutionGraph& g) : graph_(g), problems_(g) {}

  std::vector<Problem> run() {
    lanes();
    for (OpId i = 0; i < graph_.ops.size(); ++i) {
      const Op& op = graph_.ops[i];
      // Nothing below may be looked at before its place is known to exist.
      const bool placed =
          problems_.require(op.work < graph_.works.size(), i, "a work of the graph", op.work) &&
          std::size_t{op.dep_begin} + op.dep_count <= graph_.deps.size() &&
          std::size_t{op.operand_begin} + op.operand_count <= graph_.operands.size();
      if (!placed || !lanes_of(i)) continue;
      problems_.require(fits_role(graph_.works[op.work], op), i, "a work of the kind that its role needs",
                        [&] { return work_key(graph_.works[op.work]); });
      deps_of(i);
      operands_of(i);
    }
    return problems_.take();
  }

 private:
  void lanes() {
    bool whole = graph_.lanes.size() == static_cast<std::size_t>(graph_.plan.pp) * kLaneKinds;
    for (std::size_t i = 0; whole && i < graph_.lanes.size(); ++i)
      whole = graph_.lanes[i].stage == i / kLaneKinds &&
              static_cast<std::size_t>(graph_.lanes[i].kind) == i % kLaneKinds;
    if (!whole)
      problems_.add("lanes", fmt::format("{} lanes", graph_.lanes.size()),
                    "one lane of each kind for each stage");
  }

  bool lanes_of(OpId i) {
    const Op& op = graph_.ops[i];
    if (!problems_.require(op.lanes[0] < graph_.lanes.size() && graph_.lanes[op.lanes[0]].stage == op.stage,
                           i, "a lane of its stage", op.lanes[0]))
      return false;
    const bool joins = op.role == OpRole::send || op.role == OpRole::tied_reduce;
    // Or replicas that leave the micro-batch out would be waited for.
    problems_.require(
        graph_.plan.replica_microbatches.empty() || op.microbatch == kNone16 || within_replica(op), i,
        "no micro-batch, as replicas with unequally many do it together", op.microbatch);
    if (!joins) return problems_.require(op.lanes[1] == kNoLane, i, "one lane", op.lanes[1]);
    return problems_.require(op.lanes[1] < graph_.lanes.size() && graph_.lanes[op.lanes[1]].stage != op.stage,
                             i, "a second lane on another stage", op.lanes[1]);
  }

  void deps_of(OpId i) {
    const auto deps = graph_.deps_of(graph_.ops[i]);
    for (std::size_t d = 0; d < deps.size(); ++d) {
      problems_.require(deps[d] < i, i, "dependencies on earlier ops", deps[d]);
      problems_.require(std::find(deps.begin(), deps.begin() + static_cast<std::ptrdiff_t>(d), deps[d]) ==
                            deps.begin() + static_cast<std::ptrdiff_t>(d),
                        i, "each dependency named once", deps[d]);
    }
  }

  void operands_of(OpId i) {
    const Op& op = graph_.ops[i];
    for (const Operand& o : graph_.operands_of(op)) {
      if (!problems_.require(o.buffer < graph_.buffers.size(), i, "a buffer of the graph", o.buffer))
        continue;
      const Buffer& b = graph_.buffers[o.buffer];
      problems_.require(0 <= o.begin && o.begin < o.end && o.end <= b.bytes, i,
                        fmt::format("a range inside buffer {} of {} bytes", o.buffer, b.bytes),
                        [&] { return fmt::format("[{}, {})", o.begin, o.end); });
      const bool reachable = b.stage == op.stage ||
                             (op.lanes[1] != kNoLane && b.stage == graph_.lanes[op.lanes[1]].stage) ||
                             op.role == OpRole::norm_reduce;
      problems_.require(reachable, i, "buffers of its own stages",
                        [&] { return fmt::format("buffer {} of stage {}", o.buffer, b.stage); });
    }
  }

  const ExecutionGraph& graph_;
  ProblemList problems_;
};

}  // namespace

std::string op_label(const ExecutionGraph& g, OpId id) {
  return fmt::format("{} (op {}, stage {})", op_name(g, id), id, g.ops[id].stage);
}

std::vector<Problem> check_form(const ExecutionGraph& g) { return Form(g).run(); }

std::vector<std::vector<OpId>> lane_orders(const ExecutionGraph& g) {
  std::vector<std::vector<OpId>> order(g.lanes.size());
  for (OpId i = 0; i < g.ops.size(); ++i)
    for (const LaneId lane : g.ops[i].lanes)
      if (lane != kNoLane) order[lane].push_back(i);
  return order;
}

std::vector<Problem> check(const ExecutionGraph& g, const StackRules& rules) {
  std::vector<Problem> out = check_form(g);
  if (!out.empty()) return out;
  if (g.buffers.empty())
    return {{"", "graph", "no buffers", "buffers and operands",
             "lower it with operands: it was for timing only"}};
  for (const auto& problems : {check_progress(g, lane_orders(g)), check_hazards(g), check_coverage(g, rules)})
    out.insert(out.end(), problems.begin(), problems.end());
  return out;
}

}  // namespace sextant
