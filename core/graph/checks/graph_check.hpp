// Is this graph sound? Proved before anything runs, from the graph alone: a list of what is wrong, empty when nothing
// is. The proofs know nothing of how the graph was made, so they hold for every way of making one.
//
// Ignores time, memory limits and the arithmetic inside an op. Ranks of a stage carry out the same ops in the same
// order, so their groups cannot wait for each other in a circle; what is left to prove is order between lanes and
// between stages.
#pragma once

#include <vector>

#include "core/base/error.hpp"
#include "core/graph/execution_graph.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

// All of the proofs below; when the form is broken, that alone. `rules` are those the graph was lowered with.
std::vector<Problem> check(const ExecutionGraph&, const StackRules& rules);

// Ids, ranges and works fit: deps point to earlier ops and are named once, lanes belong to the op's stages, the work is
// of the kind that the role needs, operands lie inside buffers of the op's stages.
std::vector<Problem> check_form(const ExecutionGraph&);

// Every two accesses to the same bytes, one of them a write, are ordered by lanes and dependencies; nothing is read
// before it is written, except state that the previous step left (resident parameters, gradients, optimizer state,
// host memory and the norm).
std::vector<Problem> check_hazards(const ExecutionGraph&);

// Every op's turn comes. `order[lane]` is the order in which that lane's ranks issue its ops: a transfer waits until
// both ends have come to it, a sum over the world until all stages have. A problem shows the circle.
std::vector<Problem> check_progress(const ExecutionGraph&, const std::vector<std::vector<OpId>>& order);
std::vector<std::vector<OpId>> lane_orders(const ExecutionGraph&);  // by op id: what the executor issues

// The step is a whole training step: every micro-batch contributes to every gradient, each bucket is reduced over all
// that hold it and normed, each owned slice updated once and gathered before use, partial sums over tp and cp are
// added up, activations belong to their micro-batch.
std::vector<Problem> check_coverage(const ExecutionGraph&, const StackRules& rules);

// "grad_reduce b4 (op 1811, stage 2)": how problems name an op.
std::string op_label(const ExecutionGraph&, OpId);

}  // namespace sextant
