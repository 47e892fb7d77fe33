// Gradient reductions and parameter gathers follow each other: the groups of replicas carry what a fabric states of such queues.
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
  c.fabric.queued_latency = Seconds(200e-6);
  return c;
}

void expect_queued(const GroupShape& group) {
  EXPECT_EQ(group.queued_bandwidth.v, 800e9);
  EXPECT_EQ(group.queued_latency.v, 200e-6);
}

TEST(QueuedGroups, ReplicasShardsAndTheirCopies) {
  expect_queued(plan_links(Topology(congested(8)), plan(8, 1, 1, 8)).of(0).shard);
  ParallelPlan p = plan(1, 1, 1, 64);
  p.zero_stage = 2;
  p.shard_degree = 32;
  const StageLinks links = plan_links(Topology(congested(8)), p).of(0);
  EXPECT_EQ(links.shard.nodes, 4);
  expect_queued(links.shard);
  EXPECT_EQ(links.replica.nodes, 2);
  expect_queued(links.replica);
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
