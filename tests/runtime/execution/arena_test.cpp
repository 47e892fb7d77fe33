// Order and memory of a stage: happens-before against brute force, offsets that only ordered buffers share,
// and the account of what is alive.
#include "runtime/execution/arena.hpp"

#include <gtest/gtest.h>

#include "runtime/devices/make_device.hpp"
#include "tests/runtime/execution/graphs.hpp"

namespace sextant::testing {
namespace {

TEST(HappensBefore, EqualsBruteForceOnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const int stages : {1, 2, 3}) {
      const auto graph = random_graph(seed, stages, 60);
      const auto after = reachability(graph);
      for (int s = 0; s < stages; ++s) {
        const StageView view(graph, s);
        const HappensBefore before(graph, view);
        for (const OpId a : view.ops())
          for (OpId b = 0; b < graph.ops.size(); ++b)
            ASSERT_EQ(before(a, b), after[b][a]) << "seed " << seed << " ops " << a << " and " << b;
      }
    }
}

TEST(RandomTopologicalOrder, IsLawfulAndDiffers) {
  const auto graph = random_graph(5, 2, 80);
  const auto after = reachability(graph);
  std::set<std::vector<OpId>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto order = random_topological_order(graph, seed);
    EXPECT_EQ(order, random_topological_order(graph, seed));
    ASSERT_EQ(order.size(), graph.ops.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      for (std::size_t j = i + 1; j < order.size(); ++j) ASSERT_FALSE(after[order[i]][order[j]]);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 10u);
}

MemoryLedger issued_in_order(const ExecutionGraph& graph, const StageView& view) {
  MemoryLedger ledger(graph, view);
  for (const OpId op : view.ops()) {
    ledger.begin(op);
    ledger.end(op);
  }
  return ledger;
}

// Pairs of buffers that share addresses although some use of one may run beside some use of the other.
int unlawful_pairs(const ExecutionGraph& graph, const StageView& view,
                   const std::vector<std::int64_t>& offset) {
  const auto after = reachability(graph);
  std::vector<std::vector<OpId>> users(graph.buffers.size());
  for (const OpId op : view.ops())
    for (const auto& operand : graph.operands_of(graph.ops[op])) users[operand.buffer].push_back(op);
  const auto all_before = [&](BufferId a, BufferId b) {
    for (const OpId x : users[a])
      for (const OpId y : users[b])
        if (!after[y][x]) return false;
    return true;
  };
  int bad = 0;
  for (BufferId a = 0; a < graph.buffers.size(); ++a)
    for (BufferId b = a + 1; b < graph.buffers.size(); ++b) {
      const auto &x = graph.buffers[a], &y = graph.buffers[b];
      if (x.stage != view.stage() || y.stage != view.stage() || space_of(x.kind) != space_of(y.kind))
        continue;
      if (offset[a] < 0 || offset[b] < 0) continue;
      const bool share = offset[a] < offset[b] + y.bytes && offset[b] < offset[a] + x.bytes;
      if (share && (x.resident || y.resident || !(all_before(a, b) || all_before(b, a)))) ++bad;
    }
  return bad;
}

TEST(Arena, OnlyOrderedBuffersShareAddresses) {
  bool reused = false, naive_fails = false;
  for (std::uint64_t seed = 0; seed < 30; ++seed)
    for (const int stages : {1, 2}) {
      const auto graph = random_graph(seed, stages, 90);
      for (int s = 0; s < stages; ++s) {
        const StageView view(graph, s);
        const auto plan = plan_arena(graph, view);
        ASSERT_EQ(unlawful_pairs(graph, view, plan.offset), 0) << "seed " << seed;
        std::int64_t sum = 0, end = 0;
        for (BufferId b = 0; b < graph.buffers.size(); ++b) {
          if (plan.offset[b] < 0) continue;
          EXPECT_EQ(plan.offset[b] % 64, 0);
          sum += (graph.buffers[b].bytes + 63) / 64 * 64;
          end = std::max(end, plan.offset[b] + graph.buffers[b].bytes);
        }
        EXPECT_LE(end, plan.extent[0]);
        EXPECT_GE(plan.extent[0], issued_in_order(graph, view).peak(Space::device));
        reused |= plan.extent[0] < sum;

        // Negative control: with lifetimes in issue order alone, lanes overwrite each other's buffers.
        ExecutionGraph one_lane = graph;
        for (auto& op : one_lane.ops)
          if (op.lanes[1] == kNoLane) op.lanes[0] = GraphBuilder::lane(LaneKind::compute, op.stage);
        naive_fails |= unlawful_pairs(graph, view, plan_arena(one_lane, StageView(one_lane, s)).offset) > 0;
      }
    }
  EXPECT_TRUE(reused);
  EXPECT_TRUE(naive_fails);
}

// x is written and read on compute; y is written on tp. Only an edge makes x's place free for y.
TEST(Arena, ReuseAcrossLanesNeedsAnEdge) {
  for (const bool edge : {false, true}) {
    GraphBuilder b;
    const auto x = b.buffer(100), y = b.buffer(100);
    b.op(LaneKind::compute, {}, {b.write(x)});
    const OpId read = b.op(LaneKind::compute, {}, {b.read(x)});
    b.op(LaneKind::tp, edge ? std::vector<OpId>{read} : std::vector<OpId>{}, {b.write(y)});
    const auto plan = plan_arena(b.graph, StageView(b.graph, 0));
    EXPECT_EQ(plan.offset[x] == plan.offset[y], edge);
    EXPECT_EQ(plan.extent[0], edge ? 128 : 256);
  }
}

// The order may run through another stage: what was sent has been read once the answer is here.
TEST(Arena, ReuseMayBeOrderedThroughAnotherStage) {
  for (const bool answered : {false, true}) {
    GraphBuilder b(2);
    const auto out = b.buffer(64), there = b.buffer(64, BufferKind::communication, false, 1);
    const auto back = b.buffer(64, BufferKind::communication), later = b.buffer(64);
    const auto compute = GraphBuilder::lane(LaneKind::compute),
               peer = GraphBuilder::lane(LaneKind::compute, 1);
    const OpId make = b.op({compute, kNoLane}, {}, {b.write(out)});
    const OpId send =
        b.op({GraphBuilder::lane(LaneKind::send_next), GraphBuilder::lane(LaneKind::recv_prev, 1)}, {make},
             {b.read(out), b.write(there)}, OpRole::send);
    const OpId use = b.op({peer, kNoLane}, {send}, {b.read(there)});
    const OpId answer =
        b.op({GraphBuilder::lane(LaneKind::send_prev, 1), GraphBuilder::lane(LaneKind::recv_next)}, {use},
             {b.write(back)}, OpRole::send);
    b.op({compute, kNoLane}, answered ? std::vector<OpId>{answer} : std::vector<OpId>{}, {b.write(later)});
    const auto plan = plan_arena(b.graph, StageView(b.graph, 0));
    EXPECT_EQ(plan.offset[later] == plan.offset[out], answered);
    EXPECT_EQ(plan.offset[there], ArenaPlan::kNotHere);
  }
}

// compute: w(a 100) | r(a) w(b 30, host) | r(b) w(c 50). Resident 1000. At most 1000 + 100 on the device.
TEST(MemoryLedger, CountsWhatIsAliveToTheByte) {
  GraphBuilder b;
  b.buffer(1000, BufferKind::parameter, true);
  const auto x = b.buffer(100), y = b.buffer(30, BufferKind::host), z = b.buffer(50, BufferKind::workspace);
  b.op(LaneKind::compute, {}, {b.write(x)});
  b.op(LaneKind::compute, {}, {b.read(x), b.write(y)});
  b.op(LaneKind::compute, {}, {b.read(y), b.write(z)});
  const StageView view(b.graph, 0);
  const auto ledger = issued_in_order(b.graph, view);
  EXPECT_EQ(ledger.peak(Space::device), 1100);
  EXPECT_EQ(ledger.peak(Space::host), 30);
  EXPECT_EQ(ledger.at_peak(Space::device)[BufferKind::activation], 100);
  EXPECT_EQ(ledger.at_peak(Space::device)[BufferKind::workspace], 0);
  EXPECT_EQ(ledger.peak_of_each()[BufferKind::workspace], 50);
  EXPECT_EQ(ledger.now()[BufferKind::parameter], 1000);
  EXPECT_EQ(ledger.now().device().v, 1000);  // all transients have left
  EXPECT_EQ(ledger.now().host().v, 0);
  const auto plan = plan_arena(b.graph, view);
  EXPECT_EQ(plan.extent[0], 1024 + 128);
  EXPECT_EQ(plan.extent[1], 64);
}

TEST(Arena, AllocatesItsExtentOnceAndInTheRightSpace) {
  GraphBuilder b;
  const auto x = b.buffer(100, BufferKind::parameter, true), y = b.buffer(30, BufferKind::host, true);
  b.op(LaneKind::compute, {}, {b.read(x), b.write(y)});
  const auto device = make_cpu_device({});
  {
    const Arena arena(*device, b.graph, plan_arena(b.graph, StageView(b.graph, 0)));
    EXPECT_EQ(device->memory(Space::device).used, Bytes(128));
    EXPECT_EQ(device->memory(Space::host).used, Bytes(64));
    arena.at(x)[99] = arena.at(y)[29] = std::byte{1};
  }
  EXPECT_EQ(device->memory(Space::device).used, Bytes(0));
}

}  // namespace
}  // namespace sextant::testing
