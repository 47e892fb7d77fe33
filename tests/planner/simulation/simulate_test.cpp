#include "planner/simulation/simulate.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

double step(const ExecutionGraph& g, const CostModel& cost) {
  return simulate(g, price(g, cost)).makespan().v;
}

// System: uniform stages, no communication cost. Expectation: (m + pp - 1) * (tf + tb) per stage, arXiv 2104.04473 §2.2.
TEST(Simulate, OneForwardOneBackwardEqualsItsClosedForm) {
  for (const int pp : {1, 2, 4, 8})
    for (const int m : {8, 16, 32}) {
      const auto g = lower_tiny("pp" + std::to_string(pp) + ".mbs1", 8, m);
      const double per_stage = 8.0 / pp;
      EXPECT_DOUBLE_EQ(step(g, LayerCost(1, 2)), (m + pp - 1) * 3.0 * per_stage) << "pp " << pp << " m " << m;
    }
}

TEST(Simulate, GPipeEqualsItsClosedForm) {
  const auto g = lower_tiny("pp4.mbs1.gpipe", 8, 16);
  EXPECT_DOUBLE_EQ(step(g, LayerCost(1, 2)), (16 + 3) * 3.0 * 2);
}

// Expectation: m (tf + tb) + (pp - 1)(tf + tb) / vp, also where the stages do not divide the micro-batches: no group is
// smaller than they are.
TEST(Simulate, InterleavedEqualsItsClosedForm) {
  for (const int vp : {2, 4})
    for (const int m : {8, 16, 6, 7, 9, 10, 11, 13}) {
      const auto g = lower_tiny("pp4.vp" + std::to_string(vp) + ".mbs1", 16, m);
      const double per_stage = 3.0 * 4;
      EXPECT_DOUBLE_EQ(step(g, LayerCost(1, 2)), m * per_stage + 3 * per_stage / vp)
          << "vp " << vp << " m " << m;
    }
}

// ZB-H1 with F = B = W: bubble (pp - 1)(tf + tb - 2 tw) = (pp - 1) tf after arXiv 2401.10241 table 1, against
// (pp - 1)(tf + tb + tw) of 1F1B.
TEST(Simulate, ZeroBubbleShrinksTheBubbleToAThird) {
  const auto zb = lower_tiny("pp4.mbs1.zb", 4, 16), plain = lower_tiny("pp4.mbs1", 4, 16);
  const double work = 16 * 3.0;
  EXPECT_DOUBLE_EQ(step(plain, LayerCost(1, 2)) - work, 3 * 3.0);
  EXPECT_DOUBLE_EQ(step(zb, LayerCost(1, 2)) - work, 3 * 1.0);
}

// Attention takes 3 forward and 6 backward, all else but the exchange over CP ranks nothing.
struct CollectiveCost final : CostModel {
  double gather = 0, scatter = 0;
  CollectiveCost(double g, double s) : gather(g), scatter(s) {}
  static double rounds(Bytes bytes) {  // of the keys and values of a sequence of tiny_model(), in 16 bits
    const ModelSpec m = tiny_model();
    return static_cast<double>(bytes.v) / (2.0 * tiny_training().seq_len * 2 * m.n_kv_heads * m.head_dim);
  }
  OpCost price(const Work& work) const override {
    OpCost cost;
    if (const auto* block = std::get_if<BlockWork>(&work); block && block->kind == BlockKind::attention)
      cost.duration = Seconds(block->pass == Pass::backward ? 6 : 3);
    if (const auto* c = std::get_if<CollectiveWork>(&work); c && c->kind != CollectiveKind::all_reduce)
      cost.duration = Seconds(c->kind == CollectiveKind::all_gather ? rounds(c->bytes) * gather : scatter);
    return cost;
  }
};

// A ring hides what attention is long enough to hide, in each layer and direction; a gather hides nothing.
TEST(Simulate, ARingOfKeysRunsBesideAttention) {
  StackSpec ring;
  ring.rules.cp_ring = true;
  const double layers = 8, m = 16;
  for (const auto& [gather, scatter] : {std::pair{1.0, 2.0}, {4.0, 1.0}, {2.0, 5.0}, {3.0, 3.0}}) {
    const CollectiveCost cost(gather, scatter);
    const double forward = std::max(3.0, gather), backward = std::max(6.0, gather + scatter);
    EXPECT_DOUBLE_EQ(step(lower_tiny("cp2.mbs1", 8, 16, ring), cost), m * layers * (forward + backward));
    EXPECT_DOUBLE_EQ(step(lower_tiny("cp2.mbs1.full", 8, 16, ring), cost),
                     m * layers * (2 * forward + backward));
    // The attention core alone is repeated: its keys go round again, in twice the bytes of one gather.
    EXPECT_DOUBLE_EQ(step(lower_tiny("cp2.mbs1.sel", 8, 16, ring), cost),
                     m * layers * (forward + std::max(6.0, 2 * gather + scatter)));
    EXPECT_DOUBLE_EQ(step(lower_tiny("cp2.mbs1", 8, 16), cost), m * layers * (3 + 6 + 2 * gather + scatter));
  }
}

TEST(Simulate, TimingOnlyLoweringHasTheSameOperations) {
  for (const char* key :
       {"tp2.pp2.dp2.z1.mbs1", "tp2.pp2.vp2.dp2.z1.mbs1.full", "dp4.z3.mbs1", "pp2.dp2.z2.mbs1.oo50",
        "tp2.cp2.dp2.z1.mbs1.ao1", "pp2.mbs1.zb", "dp2.z3.mbs1.po"}) {
    const auto full = lower_tiny(key), timing = lower_tiny(key, 8, 16, {}, false);
    ASSERT_EQ(full.ops.size(), timing.ops.size()) << key;
    EXPECT_EQ(full.deps, timing.deps) << key;
    EXPECT_EQ(graph_hash(full), graph_hash(timing)) << key;
    EXPECT_TRUE(timing.operands.empty());
    EXPECT_FALSE(full.operands.empty());
    EXPECT_EQ(step(full, HashedCost{}), step(timing, HashedCost{})) << key;
  }
}

TEST(Simulate, ASlowStageSlowsTheStep) {
  const auto g = lower_tiny("pp4.mbs1");
  const auto costs = price(g, LayerCost(1, 2));
  SimulateOptions slow;
  slow.stage_compute_factor = {1, 1, 1.2, 1};
  EXPECT_GT(simulate(g, costs, slow).makespan().v, 1.1 * simulate(g, costs).makespan().v);
}

TEST(Simulate, InterferenceLengthensOnlyWhatRunsBesideCollectives) {
  SimulateOptions options;
  options.comm_slows_compute = 0.5;
  const auto alone = lower_tiny("pp2.mbs1"), beside = lower_tiny("dp4.z1.mbs1.b1K");
  EXPECT_EQ(simulate(alone, price(alone, HashedCost{}), options).makespan(),
            simulate(alone, price(alone, HashedCost{})).makespan());
  EXPECT_GT(simulate(beside, price(beside, HashedCost{}), options).makespan(),
            simulate(beside, price(beside, HashedCost{})).makespan());
}

// Operations that never end: the step is as long, and is found in finite time.
TEST(Simulate, AnEndlessCollectiveMakesAnEndlessStep) {
  SimulateOptions options;
  options.comm_slows_compute = 0.5;
  const auto g = lower_tiny("dp4.z1.mbs1.b1K");
  auto costs = price(g, HashedCost{});
  for (std::size_t w = 0; w < g.works.size(); ++w)
    if (std::holds_alternative<CollectiveWork>(g.works[w])) costs[w].duration = Seconds(INFINITY);
  SimulateScratch scratch;
  EXPECT_EQ(simulated_step(g, costs, options, scratch).v, INFINITY);
}

TEST(Simulate, CopiesInterfereByAFactorOfTheirOwn) {
  const auto copies = lower_tiny("dp1.mbs1.ao4"), none = lower_tiny("dp1.mbs1");
  const auto step = [](const ExecutionGraph& g, const SimulateOptions& options) {
    return simulate(g, price(g, HashedCost{}), options).makespan().v;
  };
  for (const SimulateOptions& options :
       {SimulateOptions{.copy_slows_compute = 0.5}, SimulateOptions{.compute_slows_copy = 50}}) {
    EXPECT_GT(step(copies, options), step(copies, {}));
    EXPECT_EQ(step(none, options), step(none, {}));
  }
  EXPECT_EQ(step(copies, {.comm_slows_compute = 0.5}), step(copies, {})) << "no collective is in it";
}

}  // namespace
}  // namespace sextant
