// Two timelines of a lowered layout, one made from the other by stated changes. Expectation: the comparison names exactly
// what was changed.
#include "profiler/compare.hpp"

#include <gtest/gtest.h>

#include "planner/simulation/simulate.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {
namespace {

TEST(Compare, NamesTheClassThatBecameSlower) {
  const ExecutionGraph graph = lower_tiny("tp2.pp2.dp2.z1.mbs1");
  const auto costs = price(graph, HashedCost{});
  const Timeline predicted = simulate(graph, costs);
  auto slower = costs;
  for (std::size_t w = 0; w < graph.works.size(); ++w)
    if (const auto* block = std::get_if<BlockWork>(&graph.works[w]);
        block && block->kind == BlockKind::mlp && block->pass == Pass::backward)
      slower[w].duration = 3.0 * costs[w].duration;
  const Timeline measured = simulate(graph, slower);
  const TimelineComparison c = compare(graph, predicted, measured);
  EXPECT_EQ(c.classes.front().operations, "mlp backward");
  EXPECT_NEAR(c.classes.front().ratio(), 3.0, 1e-9);
  EXPECT_TRUE(c.classes.front().compute_lane);
  for (std::size_t i = 1; i < c.classes.size(); ++i) {
    EXPECT_NEAR(c.classes[i].ratio(), 1.0, 1e-9) << c.classes[i].operations;
  }
  EXPECT_GT(c.step_ratio(), 1.0);

  std::size_t ops = 0;
  for (const ClassComparison& k : c.classes) ops += k.count;
  EXPECT_EQ(ops, graph.ops.size());
}

TEST(Compare, FindsNoDifferenceBetweenEquals) {
  const ExecutionGraph graph = lower_tiny("dp4.z3.mbs1");
  const Timeline t = simulate(graph, price(graph, HashedCost{}));
  const TimelineComparison c = compare(graph, t, t);
  EXPECT_EQ(c.step_ratio(), 1.0);
  for (const ClassComparison& k : c.classes) EXPECT_EQ(k.predicted_s, k.measured_s) << k.operations;
}

}  // namespace
}  // namespace sextant::testing
