// Graphs for tests: built by hand, or random ones whose dependencies cover every hazard and nothing else.
#pragma once

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "core/graph/execution_graph.hpp"

namespace sextant::testing {

class GraphBuilder {
 public:
  explicit GraphBuilder(int stages = 1) {
    for (int s = 0; s < stages; ++s)
      for (int k = 0; k < kLaneKinds; ++k)
        graph.lanes.push_back({static_cast<std::uint16_t>(s), static_cast<LaneKind>(k)});
  }
  static LaneId lane(LaneKind kind, int stage = 0) {
    return static_cast<LaneId>(stage * kLaneKinds + static_cast<int>(kind));
  }
  BufferId buffer(std::int64_t bytes, BufferKind kind = BufferKind::activation, bool resident = false,
                  int stage = 0) {
    Buffer buffer;
    buffer.kind = kind;
    buffer.stage = static_cast<std::uint16_t>(stage);
    buffer.resident = resident;
    buffer.bytes = bytes;
    graph.buffers.push_back(buffer);
    return static_cast<BufferId>(graph.buffers.size() - 1);
  }
  OpId op(std::array<LaneId, 2> lanes, std::vector<OpId> deps = {}, std::vector<Operand> operands = {},
          OpRole role = OpRole::block) {
    Op op;
    op.role = role;
    op.stage = graph.lanes[lanes[0]].stage;
    op.lanes = lanes;
    op.work = static_cast<WorkId>(graph.works.size());
    graph.works.push_back(
        StateWork{StateKind::zero, static_cast<std::int64_t>(graph.works.size()), {}, {}, false});
    op.dep_begin = static_cast<std::uint32_t>(graph.deps.size());
    op.dep_count = static_cast<std::uint16_t>(deps.size());
    graph.deps.insert(graph.deps.end(), deps.begin(), deps.end());
    op.operand_begin = static_cast<std::uint32_t>(graph.operands.size());
    op.operand_count = static_cast<std::uint16_t>(operands.size());
    graph.operands.insert(graph.operands.end(), operands.begin(), operands.end());
    graph.ops.push_back(op);
    return static_cast<OpId>(graph.ops.size() - 1);
  }
  OpId op(LaneKind kind, std::vector<OpId> deps = {}, std::vector<Operand> operands = {}) {
    return op({lane(kind), kNoLane}, std::move(deps), std::move(operands));
  }
  Operand read(BufferId b) const { return {b, OperandUse::stream, false, 0, graph.buffers[b].bytes}; }
  Operand write(BufferId b) const { return {b, OperandUse::stream, true, 0, graph.buffers[b].bytes}; }

  ExecutionGraph graph;
};

// after[b][a]: op a is over before op b starts, by brute force.
inline std::vector<std::vector<bool>> reachability(const ExecutionGraph& g) {
  std::vector<std::vector<bool>> after(g.ops.size(), std::vector<bool>(g.ops.size(), false));
  std::map<LaneId, OpId> last;
  for (OpId b = 0; b < g.ops.size(); ++b) {
    const auto follow = [&](OpId a) {
      after[b][a] = true;
      for (OpId c = 0; c < a; ++c)
        if (after[a][c]) after[b][c] = true;
    };
    for (const OpId dep : g.deps_of(g.ops[b])) follow(dep);
    for (const LaneId lane : g.ops[b].lanes) {
      if (lane == kNoLane) continue;
      if (last.contains(lane)) follow(last[lane]);
      last[lane] = b;
    }
  }
  return after;
}

// Ops on random lanes that read old buffers and write new or old ones; sends between stages. Buffers go out
// of use.
// NOLINTNEXTLINE(readability-function-size): one loop, whose state is all that was made so far
inline ExecutionGraph random_graph(std::uint64_t seed, int stages, int n_ops) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  GraphBuilder b(stages);
  struct Known {
    BufferId id;
    OpId writer;
    std::vector<OpId> readers;
  };
  std::vector<std::vector<Known>> known(static_cast<std::size_t>(stages));
  const LaneKind kinds[] = {LaneKind::compute, LaneKind::tp, LaneKind::grad_reduce, LaneKind::host};
  constexpr OpId kNobody = std::numeric_limits<OpId>::max();
  for (int s = 0; s < stages; ++s)
    for (int i = 0; i < 2; ++i)
      known[static_cast<std::size_t>(s)].push_back(
          {b.buffer(40 + 8 * i, i ? BufferKind::gradient : BufferKind::parameter, true, s), kNobody, {}});
  while (static_cast<int>(b.graph.ops.size()) < n_ops) {
    const auto next = static_cast<OpId>(b.graph.ops.size());
    const auto s = below(static_cast<std::size_t>(stages));
    const bool transfer = stages > 1 && below(4) == 0;
    const auto to = transfer ? (s + 1) % static_cast<std::size_t>(stages) : s;
    std::set<OpId> deps;
    std::vector<Operand> operands;
    const auto wait = [&](OpId op) {
      if (op != kNobody) deps.insert(op);
    };
    for (std::size_t i = 0; i < (transfer ? 1 : 1 + below(2)); ++i) {
      auto& from = known[s][below(known[s].size())];
      wait(from.writer);
      from.readers.push_back(next);
      operands.push_back(b.read(from.id));
    }
    const auto bytes = transfer ? operands[0].end : static_cast<std::int64_t>(8 + 8 * below(12));
    if (!transfer && below(3) == 0) {
      auto& target = known[s][below(known[s].size())];
      wait(target.writer);
      for (const OpId r : target.readers)
        if (r != next) wait(r);
      target.writer = next;
      target.readers.clear();
      operands.push_back(b.write(target.id));
    } else {
      const auto id = b.buffer(bytes, transfer ? BufferKind::communication : BufferKind::activation, false,
                               static_cast<int>(to));
      known[to].push_back({id, next, {}});
      operands.push_back(b.write(id));
    }
    // Goes out of use once its last value was read, so that a wrong order of two writes cannot stay unseen.
    if (known[to].size() > 7)
      if (const auto old = std::find_if(known[to].begin() + 2, known[to].end(),
                                        [](const Known& k) { return !k.readers.empty(); });
          old != known[to].end())
        known[to].erase(old);
    std::array<LaneId, 2> lanes = {GraphBuilder::lane(kinds[below(4)], static_cast<int>(s)), kNoLane};
    if (transfer)
      lanes = {GraphBuilder::lane(LaneKind::send_next, static_cast<int>(s)),
               GraphBuilder::lane(LaneKind::recv_prev, static_cast<int>(to))};
    b.op(lanes, {deps.begin(), deps.end()}, operands, transfer ? OpRole::send : OpRole::block);
  }
  for (std::size_t s = 0; s < known.size(); ++s)  // the same for what is left
    for (const auto& k : known[s]) {
      const auto lane = GraphBuilder::lane(LaneKind::compute, static_cast<int>(s));
      if (k.writer != kNobody && k.readers.empty()) b.op({lane, kNoLane}, {k.writer}, {b.read(k.id)});
    }
  return b.graph;
}

}  // namespace sextant::testing
