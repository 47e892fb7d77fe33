// Gradient reductions and parameter gathers follow each other: what a fabric says of such queues, in the groups of replicas.
#include <gtest/gtest.h>

#include "core/cluster/topology.hpp"
#include "core/plan/plan_links.hpp"
#include "tests/core/cluster/cluster_support.hpp"

using namespace sextant;
using sextant::test::plan;
using sextant::test::small_cluster;

namespace {

ClusterSpec congested(int nodes) {
  ClusterSpec c = small_cluster(nodes);
  c.fabric.congestion = BytesPerSecond(800e9);
  c.fabric.queued_hops = 0.25;
  return c;
}

// A rank that has a NIC of 25 GB/s to itself, over 8 nodes of a network of 800 GB/s over the nodes: 1 / (1/25 + 8/800).
TEST(QueuedGroups, RateFallsWithTheNodesAndHopsShowInPart) {
  const GroupShape replicas = plan_links(Topology(congested(8)), plan(8, 1, 1, 8)).of(0).shard;
  EXPECT_EQ(replicas.nodes, 8);
  EXPECT_NEAR(replicas.network_bandwidth.v, 20e9, 1);
  EXPECT_NEAR(replicas.network_latency.v, 13e-6 / 4, 1e-12);
}

// Groups of shards and of those that hold the same slice alike; eight ranks of a node have 200 GB/s: 1 / (1/200 + 4/800).
TEST(QueuedGroups, ShardsAndTheirCopies) {
  ParallelPlan p = plan(1, 1, 1, 64);
  p.zero_stage = 2;
  p.shard_degree = 32;
  const StageLinks links = plan_links(Topology(congested(8)), p).of(0);
  EXPECT_EQ(links.shard.nodes, 4);
  EXPECT_NEAR(links.shard.network_bandwidth.v, 100e9, 1);
  EXPECT_NEAR(links.shard.network_latency.v, 13e-6 / 4, 1e-12);
  EXPECT_EQ(links.replica.nodes, 2);
  EXPECT_NEAR(links.replica.network_bandwidth.v, 1e9 / (1 / 25.0 + 2 / 800.0), 1);
}

// What compute waits for by itself, and groups inside a node, are as they are; and where a fabric states nothing.
TEST(QueuedGroups, NothingElse) {
  const Topology topology(congested(8));
  const PlanLinks tensor = plan_links(topology, plan(16, 1, 2, 2)),
                  plain = plan_links(Topology(small_cluster(8)), plan(16, 1, 2, 2));
  EXPECT_EQ(tensor.of(0).tp, plain.of(0).tp);
  EXPECT_EQ(tensor.of(0).next, plain.of(0).next);
  EXPECT_EQ(tensor.world, plain.world);
  EXPECT_NE(tensor.of(0).shard, plain.of(0).shard);
  const PlanLinks inside = plan_links(Topology(congested(1)), plan(1, 1, 1, 8));
  EXPECT_EQ(inside, plan_links(Topology(small_cluster(1)), plan(1, 1, 1, 8)));
}

}  // namespace
