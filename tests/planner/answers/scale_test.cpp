// Which nodes a smaller cluster is made of.
#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/cluster/topology.hpp"
#include "planner/answers/sub_cluster.hpp"

namespace sextant {
namespace {

ClusterSpec cluster(int nodes, std::vector<Defect> defects) {
  ClusterSpec c = load_cluster(std::to_string(nodes) + "x8xa100-80gb", SEXTANT_SOURCE_DIR "/tools/presets");
  c.defects = std::move(defects);
  EXPECT_TRUE(validate(c).empty());
  return c;
}
Defect missing_gpu(int node, int gpu) { return {.node = node, .gpu = gpu, .missing = true}; }
Defect slow_gpu(int node, int gpu, double factor) {
  return {.node = node, .gpu = gpu, .compute_factor = factor};
}
Defect slow_network(int node, double factor) { return {.node = node, .network_factor = factor}; }

double bandwidth(const ClusterSpec& c) {
  std::vector<int> all(static_cast<std::size_t>(c.gpus()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return Topology(c).group_of(all).network_bandwidth.v;
}

TEST(SubCluster, WithoutDefectsTheLastNodesGo) {
  const ClusterSpec whole = cluster(4, {});
  for (const auto& [gpus, nodes] :
       std::vector<std::pair<int, int>>{{1, 1}, {8, 1}, {9, 2}, {16, 2}, {31, 4}, {33, 5}}) {
    ClusterSpec expected = whole;
    expected.nodes = nodes;
    EXPECT_EQ(sub_cluster(whole, gpus), expected) << gpus;
  }
  EXPECT_EQ(sub_cluster(whole, 32), whole);
}

TEST(SubCluster, ADegradedLinkIsLeftOutAndTheRestKeepsItsBandwidth) {
  const ClusterSpec degraded = cluster(4, {slow_network(1, 0.25)});
  const double healthy = bandwidth(cluster(3, {}));
  ASSERT_LT(bandwidth(degraded), healthy);
  const ClusterSpec three = sub_cluster(degraded, 24);
  EXPECT_TRUE(three.defects.empty());
  EXPECT_EQ(bandwidth(three), healthy);
  // Negative control: what cannot be done without stays, with its link.
  const ClusterSpec most = sub_cluster(degraded, 25);
  EXPECT_EQ(most, degraded);
}

TEST(SubCluster, DefectsThatStayMoveWithTheirNodes) {
  const ClusterSpec c = cluster(5, {slow_gpu(0, 2, 0.5), slow_gpu(2, 1, 0.9), slow_network(4, 0.9)});
  EXPECT_EQ(sub_cluster(c, 32).defects, (std::vector{slow_gpu(1, 1, 0.9), slow_network(3, 0.9)}));
  EXPECT_EQ(sub_cluster(c, 24).defects, std::vector{slow_network(2, 0.9)});
  EXPECT_TRUE(sub_cluster(c, 16).defects.empty());
}

// All ranks wait for the slowest: one at half speed costs more than a whole node whose links are a little slow.
TEST(SubCluster, TheSlowestDeviceGoesBeforeManySlowLinks) {
  const ClusterSpec c = cluster(3, {slow_network(0, 0.9), slow_gpu(1, 3, 0.5)});
  EXPECT_EQ(sub_cluster(c, 16).defects, std::vector{slow_network(0, 0.9)});
  const ClusterSpec worse = cluster(3, {slow_network(0, 0.1), slow_gpu(1, 3, 0.9)});  // the other way round
  EXPECT_EQ(sub_cluster(worse, 16).defects, std::vector{slow_gpu(0, 3, 0.9)});
}

// A node that lacks a GPU slows nobody. It goes where it is not needed.
TEST(SubCluster, NodesWithFewerGpusAreCountedAsTheyAre) {
  const ClusterSpec c = cluster(3, {missing_gpu(0, 5), slow_gpu(1, 0, 0.5)});
  EXPECT_EQ(sub_cluster(c, 15).defects, std::vector{missing_gpu(0, 5)});  // 7 and 8
  EXPECT_EQ(sub_cluster(c, 15).gpus(), 15);
  EXPECT_EQ(sub_cluster(c, 16).defects, std::vector{slow_gpu(0, 0, 0.5)});  // 7 and 8 are too few
  EXPECT_EQ(sub_cluster(c, 8).nodes, 1);
  EXPECT_TRUE(sub_cluster(c, 8).defects.empty());
  EXPECT_EQ(sub_cluster(c, 23), c);
  EXPECT_EQ(sub_cluster(c, 24).gpus(), 31);  // another node, of which all is whole
  // A node without any GPU is no node.
  Defect gone;
  gone.node = 1;
  gone.missing = true;
  EXPECT_EQ(sub_cluster(cluster(3, {gone}), 15).nodes, 2);
}

TEST(SubCluster, EverySizeHasThatManyGpusAndNoNodeTooMany) {
  const ClusterSpec c = cluster(5, {missing_gpu(0, 5), missing_gpu(0, 6), missing_gpu(3, 0),
                                    slow_gpu(2, 0, 0.8), slow_network(2, 0.5), slow_network(4, 0.7)});
  for (int gpus = 1; gpus <= 50; ++gpus) {
    const ClusterSpec sized = sub_cluster(c, gpus);
    EXPECT_TRUE(validate(sized).empty()) << gpus;
    EXPECT_GE(sized.gpus(), gpus);
    EXPECT_LT(sized.gpus() - gpus, 8) << gpus;
    EXPECT_EQ(sized.node, c.node);
  }
}

TEST(LeftOutNodes, AreTheWorstByTheirNumbersInTheWholeCluster) {
  const ClusterSpec c = cluster(5, {slow_gpu(0, 2, 0.5), slow_gpu(2, 1, 0.9), slow_network(4, 0.9)});
  EXPECT_EQ(left_out_nodes(c, 32), std::vector{0});
  EXPECT_EQ(left_out_nodes(c, 24), (std::vector{0, 2}));
  EXPECT_EQ(left_out_nodes(c, 16), (std::vector{0, 2, 4}));
  EXPECT_TRUE(left_out_nodes(c, 33).empty());
  EXPECT_TRUE(left_out_nodes(c, 48).empty());
  // Equal nodes go from the last on.
  EXPECT_EQ(left_out_nodes(cluster(4, {}), 16), (std::vector{2, 3}));
}

TEST(LeftOutNodes, AreNamedAsLongAsTheyAreFew) {
  EXPECT_EQ(nodes_text({3}), "node 3");
  EXPECT_EQ(nodes_text({1, 7}), "nodes 1 and 7");
  EXPECT_EQ(nodes_text({0, 1, 2, 3, 4, 5, 6, 7}), "nodes 0, 1, 2, 3, 4, 5, 6 and 7");
  EXPECT_EQ(nodes_text(std::vector<int>(9, 1)), "9 nodes");
}

TEST(GpusWithoutSlowNodes, FallsFromTheWorstNodeToTheLeastBad) {
  const ClusterSpec c = cluster(5, {slow_gpu(0, 2, 0.3), slow_gpu(2, 1, 0.9), slow_network(4, 0.9)});
  EXPECT_EQ(gpus_without_slow_nodes(c), (std::vector{32, 24, 16}));
  // Equally slow nodes go together; a GPU that is missing slows nobody.
  EXPECT_EQ(
      gpus_without_slow_nodes(cluster(4, {slow_gpu(1, 0, 0.3), slow_gpu(3, 0, 0.3), missing_gpu(0, 1)})),
      std::vector{15});
  EXPECT_TRUE(gpus_without_slow_nodes(cluster(4, {missing_gpu(0, 1)})).empty());
  EXPECT_TRUE(gpus_without_slow_nodes(cluster(1, {slow_gpu(0, 0, 0.5)})).empty());  // nothing else is left
}

// 24 of 32 GPUs do not make up for a node that all wait for at four fifths of its speed.
TEST(GpusWithoutSlowNodes, AreThoseThatMayBeFaster) {
  EXPECT_TRUE(gpus_without_slow_nodes(cluster(4, {slow_gpu(3, 0, 0.8)})).empty());
  EXPECT_EQ(gpus_without_slow_nodes(cluster(4, {slow_gpu(3, 0, 0.7)})), std::vector{24});
  EXPECT_EQ(gpus_without_slow_nodes(cluster(4, {slow_network(3, 0.7)})), std::vector{24});
  std::vector<Defect> many;
  for (int node = 0; node < 20; ++node) many.push_back(slow_gpu(node, 0, 0.5 + 0.01 * node));
  const std::vector<int> sizes = gpus_without_slow_nodes(cluster(30, many));
  EXPECT_EQ(sizes.size(), 6U);
  EXPECT_EQ(sizes.front(), 29 * 8);
  EXPECT_EQ(sizes.back(), 16 * 8);  // above half of 240
}

}  // namespace
}  // namespace sextant
