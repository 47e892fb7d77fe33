// The graph's own account of memory, against an account taken buffer by buffer.
#include "core/graph/graph_memory.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

// What a stage holds while op `at` runs, from the definition: every buffer whose first and last use enclose it.
HeldBytes held_at(const ExecutionGraph& g, int stage, OpId at) {
  HeldBytes out;
  for (BufferId b = 0; b < g.buffers.size(); ++b) {
    if (g.buffers[b].stage != stage) continue;
    bool before = false, after = false;
    for (OpId i = 0; i < g.ops.size(); ++i)
      for (const Operand& o : g.operands_of(g.ops[i]))
        if (o.buffer == b) {
          before = before || i <= at;
          after = after || i >= at;
        }
    if (g.buffers[b].resident || (before && after)) out[g.buffers[b].kind] += g.buffers[b].bytes;
  }
  return out;
}

TEST(GraphMemory, EqualsTheAccountBufferByBuffer) {
  for (const char* key : {"tp2.pp2.dp2.z1.mbs4", "dp2.z3.mbs8", "pp2.mbs4.zb", "dp2.z1.mbs8.ao1.oo50"}) {
    const auto g = lower_tiny(key, 2);
    for (int stage = 0; stage < g.plan.pp; ++stage) {
      const MemoryWalk w = walk(g, stage);
      ASSERT_FALSE(w.curve.empty());
      Bytes most, most_host;
      std::size_t point = 0;
      for (OpId i = 0; i < g.ops.size(); ++i) {
        const HeldBytes oracle = held_at(g, stage, i);
        while (point + 1 < w.curve.size() && w.curve[point + 1].op <= i) ++point;
        ASSERT_EQ(w.curve[point].held, oracle) << key << " stage " << stage << " " << op_name(g, i);
        most = std::max(most, oracle.device());
        most_host = std::max(most_host, oracle.host());
      }
      EXPECT_EQ(w.peak.held.device(), most) << key;
      EXPECT_EQ(w.host_peak, most_host) << key;
      EXPECT_GT(most, w.resident.device()) << key;
    }
  }
}

// Stage s of 1F1B keeps min(m, pp - s) micro-batches (arXiv 2104.04473 section 2.2), GPipe all m.
TEST(GraphMemory, KeepsTheMicrobatchesOfTheSchedule) {
  const auto activations = [](const ExecutionGraph& g, int stage) {
    std::int64_t most = 0;
    for (const MemoryPoint& p : walk(g, stage).curve) most = std::max(most, p.held[BufferKind::activation]);
    return most;
  };
  const auto one = lower_tiny("pp4.mbs1", 8, 8), gpipe = lower_tiny("pp4.mbs1.gpipe", 8, 8);
  const std::int64_t microbatch = activations(one, 2) / 2;
  for (const int stage : {0, 1, 2}) {
    EXPECT_EQ(activations(one, stage), (4 - stage) * microbatch) << stage;
    EXPECT_EQ(activations(gpipe, stage), 8 * microbatch) << stage;
  }
}

TEST(GraphMemory, RefusesAGraphWithoutBuffers) {
  EXPECT_ANY_THROW(walk(lower_tiny("pp2.mbs1", 8, 16, {}, false), 0));
}

}  // namespace
}  // namespace sextant
