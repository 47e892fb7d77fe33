// The topology's answers against hand-computed figures.
#include "core/cluster/topology.hpp"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/cluster/cluster_graph.hpp"
#include "core/plan/parallel_plan.hpp"
#include "tests/core/cluster/cluster_support.hpp"

using namespace sextant;
using namespace sextant::literals;
using sextant::test::plan;
using sextant::test::small_cluster;

// Eight DP groups of a TP 8 node share eight NICs of 31.25 GB/s at efficiency 0.8: 25 GB/s each.
TEST(Topology, TensorParallelNodeGivesEachDataGroupOneNic) {
  const Topology t(small_cluster(8));
  const RankGrid grid(plan(8, 1, 1, 8));
  const GroupShape tp = t.group(grid, {Axis::tp}), dp = t.group(grid, {Axis::dp});
  EXPECT_EQ(tp.nodes, 1);
  EXPECT_EQ(tp.ranks_per_node, 8);
  EXPECT_DOUBLE_EQ(tp.node_bandwidth.v, 300e9);
  EXPECT_EQ(tp.network_bandwidth.v, 0);
  EXPECT_TRUE(tp.switched);
  EXPECT_EQ(dp.nodes, 8);
  EXPECT_EQ(dp.ranks_per_node, 1);
  EXPECT_EQ(dp.node_bandwidth.v, 0);
  EXPECT_NEAR(dp.network_bandwidth.v, 25e9, 1);
  EXPECT_DOUBLE_EQ(dp.network_latency.v, 13e-6);
}

TEST(Topology, DataParallelOverWholeNodesUsesAllNics) {
  const GroupShape dp = Topology(small_cluster(8)).group(RankGrid(plan(1, 1, 1, 64)), {Axis::dp});
  EXPECT_EQ(dp.size, 64);
  EXPECT_EQ(dp.nodes, 8);
  EXPECT_EQ(dp.ranks_per_node, 8);
  EXPECT_NEAR(dp.network_bandwidth.v, 200e9, 8);
  EXPECT_DOUBLE_EQ(dp.node_bandwidth.v, 300e9);
}

TEST(Topology, FourNicsForEightGpusAreSharedByPairs) {
  ClusterSpec c = small_cluster(4);
  c.node.nics = 4;
  c.fabric.bandwidth = BytesPerSecond(4 * c.node.nic_bandwidth.v);
  const Topology t(c);
  EXPECT_NEAR(t.group(RankGrid(plan(8, 1, 1, 4)), {Axis::dp}).network_bandwidth.v, 12.5e9, 1);
  EXPECT_NEAR(t.group(RankGrid(plan(1, 1, 1, 32)), {Axis::dp}).network_bandwidth.v, 100e9, 1);
  // Only the last GPU of a node sends to the next node: one NIC, alone.
  EXPECT_NEAR(t.stage_link(RankGrid(plan(1, 1, 32, 1)), 7).network_bandwidth.v, 25e9, 1);
  EXPECT_DOUBLE_EQ(t.stage_link(RankGrid(plan(1, 1, 32, 1)), 6).node_bandwidth.v, 300e9);
  // All eight send at once: two to a NIC.
  EXPECT_NEAR(t.stage_link(RankGrid(plan(8, 1, 4, 1)), 0).network_bandwidth.v, 12.5e9, 1);
}

TEST(Topology, GroupsAcrossNodeBordersAreSeen) {
  const Topology t(small_cluster(3));
  const GroupShape odd = t.group(RankGrid(plan(3, 1, 1, 8)), {Axis::tp});  // 6, 7 | 8
  EXPECT_EQ(odd.nodes, 2);
  EXPECT_EQ(odd.ranks_per_node, 2);
  EXPECT_NEAR(odd.network_bandwidth.v, 25e9, 1);  // the rank that is alone has one NIC
  const GroupShape wide = t.group(RankGrid(plan(24, 1, 1, 1)), {Axis::tp});
  EXPECT_EQ(wide.nodes, 3);
  EXPECT_NEAR(wide.network_bandwidth.v, 200e9, 8);
}

TEST(Topology, OversubscriptionCountsAboveTheLeafOnly) {
  ClusterSpec c = small_cluster(16);
  c.fabric.leaf_nodes = 8;
  c.fabric.oversubscription = 4;
  const Topology t(c);
  const RankGrid grid(plan(8, 1, 2, 8));  // a stage fills one leaf
  EXPECT_NEAR(t.group(grid, {Axis::dp}).network_bandwidth.v, 25e9, 1);
  EXPECT_NEAR(t.group(RankGrid(plan(8, 1, 1, 16)), {Axis::dp}).network_bandwidth.v, 6.25e9, 1);
  // Stage 0 to stage 1: all 64 pairs take the uplinks (8 rails of 8 * 25 / 4 GB/s).
  EXPECT_NEAR(t.stage_link(grid, 0).network_bandwidth.v, 6.25e9, 1);
  // With a stage a node, only one node of the leaf sends out: its rail uplink of 50 GB/s is not the limit.
  EXPECT_NEAR(t.stage_link(RankGrid(plan(8, 1, 16, 1)), 7).network_bandwidth.v, 25e9, 1);
}

TEST(Topology, NvlinkDomainOverNodesCountsAsOne) {
  ClusterSpec c = small_cluster(36);
  c.node.gpus = 4;
  c.node.nics = 4;
  c.node.domain_nodes = 18;
  c.node.nvls = true;
  c.fabric.bandwidth = BytesPerSecond(4 * c.node.nic_bandwidth.v);
  const Topology t(c);
  const RankGrid grid(plan(8, 1, 1, 18));
  const GroupShape tp = t.group(grid, {Axis::tp});
  EXPECT_EQ(tp.nodes, 1);
  EXPECT_EQ(tp.ranks_per_node, 8);
  EXPECT_TRUE(tp.in_switch);
  const GroupShape dp = t.group(grid, {Axis::dp});
  EXPECT_EQ(dp.nodes, 2);
  EXPECT_EQ(dp.ranks_per_node, 9);
  EXPECT_NEAR(dp.network_bandwidth.v, 9 * 25e9, 9);
  EXPECT_EQ(t.node_of(7), 1);
}

TEST(Topology, MeshGroupsUseOnlyTheLinksAmongThem) {
  ClusterSpec c = small_cluster(2);
  c.node.gpus = 4;
  c.node.nics = 4;
  c.node.link = NodeLinkKind::nvlink_mesh;
  c.fabric.bandwidth = BytesPerSecond(4 * c.node.nic_bandwidth.v);
  const Topology t(c);
  EXPECT_NEAR(t.group(RankGrid(plan(2, 1, 1, 4)), {Axis::tp}).node_bandwidth.v, 100e9, 1);
  EXPECT_NEAR(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::tp}).node_bandwidth.v, 300e9, 1);
  EXPECT_FALSE(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::tp}).switched);
}

TEST(Topology, PcieSwitchUplinksAreSharedByGroups) {
  ClusterSpec c = small_cluster(1);
  c.node.link = NodeLinkKind::pcie;
  c.node.link_bandwidth = 32_GBps;
  c.device.host_link = 32_GBps;
  c.node.nics = 2;
  c.fabric.bandwidth = BytesPerSecond(2 * c.node.nic_bandwidth.v);
  const Topology t(c);  // two switches of four GPUs
  EXPECT_NEAR(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::tp}).node_bandwidth.v, 32e9, 1);
  // dp = {i, i + 4}: four groups cross between the switches.
  EXPECT_NEAR(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::dp}).node_bandwidth.v, 8e9, 1);
}

TEST(Topology, CpuRanksShareTheMemoryOfTheirHost) {
  ClusterSpec c = small_cluster(1);
  c.node.link = NodeLinkKind::shared_memory;
  c.node.host_memory_bandwidth = 40_GBps;
  c.node.link_bandwidth = 12_GBps;
  const Topology t(c);
  EXPECT_NEAR(t.group(RankGrid(plan(2, 1, 1, 4)), {Axis::tp}).node_bandwidth.v, 5e9, 1);
  EXPECT_NEAR(t.group(RankGrid(plan(2, 1, 1, 1)), {Axis::tp}).node_bandwidth.v, 12e9, 1);
}

TEST(Topology, DefectsSlowTheGroupsThatTouchThem) {
  ClusterSpec c = small_cluster(4);
  c.defects = {{.node = 2, .gpu = 5, .compute_factor = 0.9, .node_link_factor = 0.5, .network_factor = 0.25}};
  const Topology t(c);
  const RankGrid grid(plan(8, 1, 2, 2));
  EXPECT_EQ(t.compute_factor(2 * 8 + 5), 0.9);
  EXPECT_EQ(t.compute_factor(2 * 8 + 4), 1.0);
  EXPECT_NEAR(t.group(grid, {Axis::tp}).node_bandwidth.v, 150e9, 1);
  EXPECT_NEAR(t.group(grid, {Axis::dp}).network_bandwidth.v, 6.25e9, 1);
  // Node 2 belongs to stage 1 (dp inside, pp outside): stage 0 is not touched.
  EXPECT_NEAR(t.group(grid, {Axis::tp}, 0).node_bandwidth.v, 300e9, 1);
  EXPECT_NEAR(t.group(grid, {Axis::tp}, 1).node_bandwidth.v, 150e9, 1);
  EXPECT_NEAR(t.group(grid, {Axis::dp}, 0).network_bandwidth.v, 25e9, 1);
}

TEST(Topology, MissingGpusShiftTheRanks) {
  ClusterSpec c = small_cluster(2);
  c.defects = {{.node = 0, .gpu = 3, .missing = true}};
  const Topology t(c);
  EXPECT_EQ(t.ranks(), 15);
  EXPECT_EQ(c.gpus(), 15);
  EXPECT_EQ(t.node_of(6), 0);
  EXPECT_EQ(t.node_of(7), 1);
}

TEST(Topology, GroupOfSharesNodeNicsEvenly) {
  const Topology t(small_cluster(2));
  const std::vector<int> pair = {8, 0}, halves = {0, 1, 2, 3, 8, 9, 10, 11};
  EXPECT_NEAR(t.group_of(pair).network_bandwidth.v, 25e9, 1);
  EXPECT_NEAR(t.group_of(pair, 16).network_bandwidth.v, 12.5e9, 1);
  EXPECT_NEAR(t.group_of(halves, 2).network_bandwidth.v, 100e9, 1);
  EXPECT_EQ(t.group_of(halves).ranks_per_node, 4);
}

TEST(Topology, ADegradedNicSlowsWhatUsesIt) {
  ClusterSpec c = small_cluster(4);
  c.defects = {{.node = 1, .nic = 5, .network_factor = 0.5}};
  ASSERT_TRUE(validate(c).empty()) << to_string(validate(c).front());
  const Topology t(c);
  const RankGrid nodewise(plan(8, 1, 1, 4)), inside(plan(8, 1, 4, 1));
  EXPECT_NEAR(t.group(nodewise, {Axis::dp}).network_bandwidth.v, 12.5e9, 1);  // the group of GPU 5
  EXPECT_EQ(t.group(nodewise, {Axis::tp}), Topology(small_cluster(4)).group(nodewise, {Axis::tp}));
  EXPECT_NEAR(t.stage_link(inside, 0).network_bandwidth.v, 12.5e9, 1);
  EXPECT_NEAR(t.stage_link(inside, 2).network_bandwidth.v, 25e9, 1);  // nodes 2 and 3
  EXPECT_EQ(ClusterGraph(c).capacity({VertexKind::pcie, 1, 5}, {VertexKind::nic, 1, 5}).v, 12.5e9);
}

TEST(Topology, ADegradedUplinkSlowsWhatCrossesItsLeaf) {
  ClusterSpec c = small_cluster(8);
  c.fabric.leaf_nodes = 2;
  const ClusterSpec sound = c;
  c.defects = {{.leaf = 1, .network_factor = 0.5}};
  ASSERT_TRUE(validate(c).empty()) << to_string(validate(c).front());
  const Topology t(c), healthy(sound);
  const RankGrid all(plan(8, 1, 1, 8)), stages(plan(8, 1, 4, 2));
  EXPECT_NEAR(t.group(all, {Axis::dp}).network_bandwidth.v,
              0.5 * healthy.group(all, {Axis::dp}).network_bandwidth.v, 1);
  // A stage fills a leaf: its own groups never leave it, its transfers do.
  for (int s = 0; s < 4; ++s)
    EXPECT_EQ(t.group(stages, {Axis::dp}, s), healthy.group(stages, {Axis::dp}, s)) << s;
  EXPECT_NEAR(t.stage_link(stages, 0).network_bandwidth.v, 12.5e9, 1) << "enters leaf 1";
  EXPECT_NEAR(t.stage_link(stages, 1).network_bandwidth.v, 12.5e9, 1) << "leaves leaf 1";
  EXPECT_EQ(t.stage_link(stages, 2), healthy.stage_link(stages, 2));
  EXPECT_LT(t.bisection().v, healthy.bisection().v);
  // On one rail, an eighth of the traffic of a group that uses all.
  c.defects[0].nic = 3;
  const RankGrid wide(plan(1, 1, 1, 64));
  EXPECT_NEAR(Topology(c).group(wide, {Axis::dp}).network_bandwidth.v, 200e9 * (7.5 / 8), 8);
}

// Of a state over 8 ranks of a node, only the 4th node's groups touch the slow NIC: none but the slowest counts.
TEST(Topology, ShardGroupsSeeADefectWhereverItIs) {
  ClusterSpec c = small_cluster(4);
  const RankGrid grid(plan(2, 1, 1, 16));
  const auto sound = Topology(c).shard_groups(grid, 0, 8);
  c.defects = {{.node = 3, .nic = 7, .network_factor = 0.5}};
  const auto slow = Topology(c).shard_groups(grid, 0, 8);
  EXPECT_LT(slow.shard.network_bandwidth.v, 0.99 * sound.shard.network_bandwidth.v);
  EXPECT_EQ(slow.shard.nodes, sound.shard.nodes);
}

TEST(Topology, BisectionIsTheCutOfHalfTheNodes) {
  EXPECT_NEAR(Topology(small_cluster(1)).bisection().v, 4 * (300e9 + 32e9),
              1e4);  // NVSwitch, and PCIe beside it
  EXPECT_NEAR(Topology(small_cluster(8)).bisection().v, 4 * 200e9, 1e4);
  ClusterSpec c = small_cluster(8);
  c.fabric.leaf_nodes = 2;
  c.fabric.oversubscription = 2;
  EXPECT_NEAR(Topology(c).bisection().v, 2 * 200e9, 1e4);
  c.defects = {{.node = 0, .network_factor = 0.1}};
  EXPECT_NEAR(Topology(c).bisection().v, ClusterGraph(c).min_cut({}, {}).v + network_cut(c, 4).v, 1e4);
}

TEST(ClusterGraph, WidestPathPrefersNvlinkAndCrossesRailsThroughIt) {
  const ClusterGraph g(small_cluster(2));
  using enum VertexKind;
  const auto inside = g.widest_path({gpu, 0, 0}, {gpu, 0, 7});
  EXPECT_DOUBLE_EQ(inside.bandwidth.v, 300e9);
  EXPECT_DOUBLE_EQ(inside.latency.v, 2e-6);
  // GPU 0 of node 0 to GPU 7 of node 1: rails do not meet, the switch inside the node does.
  const auto across = g.widest_path({gpu, 0, 0}, {gpu, 1, 7});
  EXPECT_NEAR(across.bandwidth.v, 25e9, 1);
  EXPECT_GE(across.latency.v, 13e-6);
}

TEST(ClusterGraph, DotOfASmallClusterIsStable) {
  ClusterSpec c = small_cluster(2);
  c.node.gpus = 2;
  c.node.nics = 2;
  c.fabric.leaf_nodes = 1;
  c.fabric.oversubscription = 2;
  c.fabric.bandwidth = BytesPerSecond(2 * c.node.nic_bandwidth.v);
  const std::string path = SEXTANT_SOURCE_DIR "/tests/golden/topology_2x2.dot";
  const std::string now = Topology(c).dot();
  if (std::getenv("SEXTANT_UPDATE_GOLDEN")) std::ofstream(path) << now;
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(now, golden.str()) << "rewrite with SEXTANT_UPDATE_GOLDEN=1 and review the change";
}
