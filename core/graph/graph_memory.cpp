#include "core/graph/graph_memory.hpp"

#include <algorithm>
#include <limits>

#include "core/base/error.hpp"

namespace sextant {

Bytes HeldBytes::device() const {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : by_kind) sum += bytes;
  return Bytes(sum - (*this)[BufferKind::host]);
}

MemoryWalk walk(const ExecutionGraph& graph, int stage) {
  SEXTANT_CHECK(!graph.buffers.empty(), "the graph was lowered for timing only and has no buffers");
  constexpr OpId kNever = std::numeric_limits<OpId>::max();
  const auto mine = [&](BufferId b) { return graph.buffers[b].stage == stage && !graph.buffers[b].resident; };
  std::vector<OpId> last(graph.buffers.size(), kNever);
  for (OpId i = 0; i < graph.ops.size(); ++i)
    for (const Operand& operand : graph.operands_of(graph.ops[i])) last[operand.buffer] = i;

  MemoryWalk out;
  for (const Buffer& b : graph.buffers)
    if (b.stage == stage && b.resident) out.resident[b.kind] += b.bytes;

  HeldBytes held = out.resident;
  out.peak.held = held;
  out.host_peak = held.host();
  std::vector<bool> alive(graph.buffers.size(), false);
  bool changed = true;  // so that the curve starts with the first op
  for (OpId i = 0; i < graph.ops.size(); ++i) {
    const auto operands = graph.operands_of(graph.ops[i]);
    for (const Operand& operand : operands) {
      if (!mine(operand.buffer) || alive[operand.buffer]) continue;
      alive[operand.buffer] = changed = true;
      held[graph.buffers[operand.buffer].kind] += graph.buffers[operand.buffer].bytes;
    }
    if (changed) {
      out.curve.push_back({i, held});
      if (held.device() > out.peak.held.device()) out.peak = out.curve.back();
      out.host_peak = std::max(out.host_peak, held.host());
      changed = false;
    }
    for (const Operand& operand : operands) {
      if (!mine(operand.buffer) || !alive[operand.buffer] || last[operand.buffer] != i) continue;
      alive[operand.buffer] = false;
      changed = true;
      held[graph.buffers[operand.buffer].kind] -= graph.buffers[operand.buffer].bytes;
    }
  }
  return out;
}

}  // namespace sextant
