// Collectives against published tables, and rules that any network obeys.
#include "cost_models/collective.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/cost_models/machines.hpp"

namespace sextant {
namespace {

Machine machine_of(const ClusterSpec& c) {
  return AnalyticCostModel(c, StackSpec{}, test::preset_dir()).machine();
}

// System: all-gather of 256 MiB on p5 (H100, EFA 3200 Gb/s), bus bandwidth by nodes, median of many runs
// (nanotron, ultrascale playbook, chart values, 2025-02). Expectation: hop latency alone explains the fall:
// 42 us a hop and a constant 250 GB/s reproduce 2..64 nodes within 21 %.
TEST(Collective, EfaAllGatherFallsWithNodes) {
  ClusterSpec c = test::h100_cluster();
  c.fabric.latency = Seconds(42e-6);
  c.fabric.efficiency = 250.0 / 400.0;
  const Machine m = machine_of(c);
  const std::pair<int, double> rows[] = {{2, 184.61}, {4, 118.97}, {8, 69.0},
                                         {16, 54.97}, {32, 27.97}, {64, 11.04}};
  for (const auto& [nodes, measured] : rows) {
    const CollectiveWork w{CollectiveKind::all_gather, Bytes(268435456), test::across(c, nodes, 8), false};
    const int n = nodes * 8;
    const double bus = 268435456.0 * (n - 1) / n / price_collective(w, m).duration.v / 1e9;
    EXPECT_NEAR(bus / measured, 1.0, 0.21)
        << nodes << " nodes: " << bus << " against " << measured << " GB/s";
  }
}

// System: one DGX A100, NCCL all-reduce of large messages, 232 GB/s bus bandwidth (vTrain table).
TEST(Collective, OneNodeOfA100) {
  const ClusterSpec c = test::a100_cluster();
  const CollectiveWork w{CollectiveKind::all_reduce, Bytes(std::int64_t{1} << 32), test::inside(c, 8), false};
  const double bus =
      2.0 * 7 / 8 * static_cast<double>(w.bytes.v) / price_collective(w, machine_of(c)).duration.v / 1e9;
  EXPECT_NEAR(bus / 232.0, 1.0, 0.02);
}

// One data-parallel group in eight gets an eighth of the NICs: the same vector takes eight times as long.
TEST(Collective, SharedNicsAreShared) {
  ClusterSpec c = test::h100_cluster();
  c.fabric.efficiency = 0.5;  // below what rings inside a node reach
  const Machine m = machine_of(c);
  const Bytes bytes(std::int64_t{1} << 33);
  const double alone =
      price_collective({CollectiveKind::reduce_scatter, bytes, test::across(c, 2, 8), false}, m).memory.v;
  const double shared =
      price_collective({CollectiveKind::reduce_scatter, bytes, test::across(c, 16, 1), false}, m).memory.v;
  EXPECT_NEAR(shared / alone, 8.0, 0.01);
}

// What ranks of one node wait for each other, ranks of several wait too: a tiny message takes no less over two nodes of eight
// than inside one.
TEST(Collective, SeveralNodesWaitNoLessThanOne) {
  const ClusterSpec c = test::h100_cluster();
  const Machine m = machine_of(c);
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather})
    for (const std::int64_t bytes : {8L, 65536L, 1L << 20, 1L << 24}) {
      const double inside = price_collective({kind, Bytes(bytes), test::inside(c, 8), false}, m).duration.v;
      EXPECT_GE(price_collective({kind, Bytes(bytes), test::across(c, 2, 8), false}, m).duration.v, inside)
          << bytes;
    }
}

// In a queue each node adds the message's time at one rate, and at most a latency, in place of hops: 16 nodes, 1000 GB/s, 250 us.
TEST(Collective, NodesOfAQueueAddTheirShare) {
  const ClusterSpec c = test::h100_cluster();
  const Machine m = machine_of(c);
  GroupShape g;
  g.size = g.nodes = 16;
  g.network_bandwidth = BytesPerSecond(25e9);
  g.network_latency = Seconds(40e-6);
  GroupShape queued = g;
  queued.queued_bandwidth = BytesPerSecond(1000e9);
  queued.queued_latency = Seconds(250e-6);
  g.network_latency = {};
  const auto added = [&](CollectiveKind kind, std::int64_t bytes) {
    const auto seconds = [&](const GroupShape& group) {
      return price_collective({kind, Bytes(bytes), group}, m).duration.v;
    };
    return seconds(queued) - seconds(g);
  };
  constexpr std::int64_t kSmall = 10'000'000, kHalf = 250'000'000, kLarge = 250'000'000'000;
  const double start =
      added(CollectiveKind::all_gather, 1);  // what ranks of a node wait for covers the first of it
  EXPECT_NEAR(added(CollectiveKind::all_gather, kHalf), 16 * 125e-6, 2e-4);
  EXPECT_NEAR(added(CollectiveKind::all_gather, kLarge), 16 * 250e-6, 2e-4);
  EXPECT_NEAR(added(CollectiveKind::all_reduce, kHalf), 2 * 16 * 125e-6, 2e-4);
  EXPECT_LT(added(CollectiveKind::all_gather, kSmall), 16 * 10e-6);
  EXPECT_NEAR(start, 0, 1e-6);
}

TEST(Collective, HiddenShareIsExposedTheRest) {
  const ClusterSpec c = test::h100_cluster();
  const Machine m = machine_of(c);
  CollectiveWork w{CollectiveKind::reduce_scatter, Bytes(1 << 26), test::inside(c, 8), false};
  const double full = price_collective(w, m, 0.52).duration.v;
  w.tp_overlapped = true;
  EXPECT_NEAR(price_collective(w, m, 0.52).duration.v, 0.48 * full, 1e-12);
  EXPECT_NEAR(price_collective(w, m, 0.0).duration.v, full, 1e-12);
}

TEST(Collective, NothingToDoIsFree) {
  const ClusterSpec c = test::h100_cluster();
  const Machine m = machine_of(c);
  EXPECT_EQ(
      price_collective({CollectiveKind::all_reduce, Bytes(1 << 20), test::inside(c, 1), false}, m).duration.v,
      0);
  EXPECT_EQ(price_collective({CollectiveKind::all_reduce, Bytes(0), test::inside(c, 8), false}, m).duration.v,
            0);
}

}  // namespace
}  // namespace sextant
