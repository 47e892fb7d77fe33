// What must fit, what is seen of it, and the chance that it does not.
#include <gtest/gtest.h>

#include "planner/simulation/stage_memory.hpp"
#include "tests/support/specs.hpp"

namespace sextant {
namespace {

using namespace testing;

// Cached blocks are given back before the allocator fails: they are seen where there is room, and need not fit.
TEST(MemoryLimit, WhatIsCachedIsSeenAndNeedNotFit) {
  StackSpec stack;
  stack.memory.fragmentation = 1.25;
  const ParallelPlan plan = parse_plan_key("pp2.mbs1");
  const auto with = [&](double share) {
    stack.memory.reserve_needed = share;
    return estimate_memory(tiny_model(), tiny_training(), plan, stack);
  };
  const auto reserved = [](const MemoryEstimate& e) {
    return e.stages[static_cast<std::size_t>(e.heaviest)].reserved();
  };
  const MemoryEstimate whole = with(1), part = with(0.25), nothing = with(0);
  const auto reserve = static_cast<double>(reserved(whole).v - nothing.needed().v);
  ASSERT_GT(reserve, 1000);
  EXPECT_EQ(whole.needed(), reserved(whole));
  EXPECT_EQ(reserved(part), reserved(whole));
  EXPECT_EQ(reserved(nothing), reserved(whole));
  EXPECT_NEAR(static_cast<double>(part.needed().v - nothing.needed().v), 0.25 * reserve, 1);

  ClusterSpec cluster;
  const auto seen = [&](const MemoryEstimate& e, const char* kind, Bytes capacity) {
    cluster.device.memory = capacity;
    return as_measured(e, plan, cluster, kind);
  };
  const Bytes roomy = reserved(part), between((reserved(part).v + part.needed().v) / 2), small(1);
  for (const char* kind : {"device", "nvidia_smi"}) {
    EXPECT_EQ(seen(part, kind, roomy), gib(reserved(part)));
    EXPECT_EQ(seen(part, kind, between), gib(between));
    EXPECT_EQ(seen(part, kind, small), gib(part.needed()));  // predicted to fail: what it would take
  }
  EXPECT_EQ(seen(part, "torch_reserved", between),
            gib(between - part.stages[static_cast<std::size_t>(part.heaviest)].outside));
  EXPECT_EQ(seen(part, "torch_peak", between), gib(part.allocated()));
}

TEST(MemoryLimit, TheMostThatMayBeNeededIsTheInverseOfTheChance) {
  const Bytes capacity = from_gib(79.2);
  for (const double chance : {1e-6, 0.01, 0.05, 0.3, 0.49}) {
    const Bytes most = most_needed(capacity, chance);
    EXPECT_LE(chance_of_overflow(most, capacity), chance);
    EXPECT_GT(chance_of_overflow(Bytes(most.v + 1000), capacity), chance);
  }
  EXPECT_LT(most_needed(capacity, 0.01), most_needed(capacity, 0.05));
  EXPECT_EQ(most_needed(capacity, 0.5), capacity);
  EXPECT_EQ(most_needed(capacity, 1), capacity);
  EXPECT_EQ(most_needed(capacity, 0.9), capacity);  // what is predicted not to fit is no layout
  EXPECT_EQ(most_needed(capacity, 1e-300), Bytes(0));
}

// A runtime that lays its memory out to the byte may fill it further than one whose allocator was fitted.
TEST(MemoryLimit, AnExactStackMayFillMoreOfTheMemory) {
  const Bytes capacity = from_gib(79.2);
  StackSpec fitted, exact;
  exact.memory.exact_tensors = true;
  const auto filled = [&](const StackSpec& stack) {
    return static_cast<double>(most_needed(capacity, 0.05, overflow_scale(stack)).v) /
           static_cast<double>(capacity.v);
  };
  EXPECT_LT(filled(fitted), 0.92);
  EXPECT_GT(filled(exact), 0.98);
  EXPECT_LT(filled(exact), 1);
}

}  // namespace
}  // namespace sextant
