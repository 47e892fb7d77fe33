// The topology's answers against hand-computed figures, against brute force over all groups, and as
// properties.
#include "core/cluster/topology.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/cluster/cluster_graph.hpp"
#include "core/plan/plan_links.hpp"
#include "tests/core/cluster/cluster_support.hpp"

using namespace sextant;
using namespace sextant::literals;
using sextant::test::small_cluster;

namespace {

ParallelPlan plan(int tp, int cp, int pp, int dp) {
  ParallelPlan p;
  p.tp = tp, p.cp = cp, p.pp = pp, p.dp = dp;
  return p;
}

// Under one PCIe switch.
bool nic_serves(const ClusterSpec& c, int nic, int gpu) {
  const int bundles = std::gcd(c.node.gpus, c.node.nics);
  return nic / (c.node.nics / bundles) == gpu / (c.node.gpus / bundles);
}

// What the header promises, taken literally: every group, every rank, every sharer; no blocks, no graph.
GroupShape brute_force(const ClusterSpec& c, const RankGrid& grid, std::initializer_list<Axis> axes,
                       int stage) {
  std::vector<std::pair<int, int>> seats;  // rank -> node, GPU
  for (int n = 0; n < c.nodes; ++n)
    for (int g = 0; g < c.node.gpus; ++g) {
      const bool missing = std::ranges::any_of(
          c.defects, [&](const Defect& d) { return d.missing && d.node == n && (d.gpu < 0 || d.gpu == g); });
      if (!missing) seats.emplace_back(n, g);
    }
  const auto factor = [&](int n, int g, double Defect::*which) {
    double f = 1;
    for (const Defect& d : c.defects)
      if (d.node == n && (d.gpu < 0 || d.gpu == g) && (d.nic < 0 || nic_serves(c, d.nic, g)))
        f = std::min(f, d.*which);
    return f;
  };
  const auto uplink = [&](int node, int g) {
    double f = 1;
    for (const Defect& d : c.defects)
      if (d.leaf >= 0 && d.leaf == node / c.fabric.leaf_nodes && (d.nic < 0 || nic_serves(c, d.nic, g)))
        f = std::min(f, d.network_factor);
    return f;
  };
  const int bundles = std::gcd(c.node.gpus, c.node.nics), per = c.node.gpus / bundles;
  const int world =
      grid.extent(Axis::tp) * grid.extent(Axis::cp) * grid.extent(Axis::dp) * grid.extent(Axis::pp);
  const auto domain = [&](int r) { return seats[std::size_t(r)].first / c.node.domain_nodes; };
  const auto bundle = [&](int r) {
    return std::pair(seats[std::size_t(r)].first, seats[std::size_t(r)].second / per);
  };
  const auto rate = [&](std::pair<int, int> b) {
    double f = 1;
    for (int g = b.second * per; g < (b.second + 1) * per; ++g)
      f = std::min(f, factor(b.first, g, &Defect::network_factor));
    return f * c.node.nic_bandwidth.v * c.node.nics / bundles * c.fabric.efficiency;
  };
  const auto crosses = [&](const std::vector<int>& g) {
    return std::ranges::any_of(g, [&](int r) { return domain(r) != domain(g[0]); });
  };
  std::vector<std::vector<int>> group_of(static_cast<std::size_t>(world));
  std::map<std::pair<int, int>, int> users;
  for (int r = 0; r < world; ++r) {
    auto& g = group_of[std::size_t(r)] = grid.group(grid.coord(r), axes);
    std::ranges::sort(g);
    if (crosses(g)) ++users[bundle(r)];
  }
  GroupShape out;
  out.nodes = 0;
  double node_rate = 0, network = 0;
  const auto narrow = [](double& a, double b) { a = a == 0 ? b : std::min(a, b); };
  for (int r = 0; r < world; ++r) {
    if (stage >= 0 && grid.coord(r).pp != stage) continue;
    const auto& g = group_of[std::size_t(r)];
    std::map<int, std::vector<int>> by_domain;
    for (const int m : g) by_domain[domain(m)].push_back(m);
    const auto leaf = [&](int m) {
      return c.fabric.leaf_nodes > 0 ? seats[std::size_t(m)].first / c.fabric.leaf_nodes : 0;
    };
    const bool leaves_leaf = std::ranges::any_of(g, [&](int m) { return leaf(m) != leaf(g[0]); });
    std::size_t fullest = 0;
    double group_network = 0;
    for (const auto& [i, members] : by_domain) {
      fullest = std::max(fullest, members.size());
      std::map<std::pair<int, int>, int> mine;
      for (const int m : members) {
        ++mine[bundle(m)];
        const auto [node, gpu] = seats[std::size_t(m)];
        if (members.size() > 1) {
          double links = c.node.link_bandwidth.v * factor(node, gpu, &Defect::node_link_factor);
          if (c.node.link == NodeLinkKind::nvlink_mesh) {
            links = 0;
            for (const int other : members)
              if (other != m)
                links += c.node.link_bandwidth.v / (c.node.gpus - 1) *
                         std::min(factor(node, gpu, &Defect::node_link_factor),
                                  factor(node, seats[std::size_t(other)].second, &Defect::node_link_factor));
          }
          narrow(node_rate, links);
        }
      }
      double sum = 0;
      for (const auto& [b, count] : mine)
        if (users[b] > 0)
          sum += std::min(rate(b) * count / users[b], count * c.device.host_link.v) *
                 (leaves_leaf ? uplink(b.first, b.second * per) : 1);
      if (by_domain.size() > 1) narrow(group_network, sum);
    }
    if (leaves_leaf) group_network /= c.fabric.oversubscription;
    if (by_domain.size() > 1) narrow(network, group_network);
    const int spread = static_cast<int>(by_domain.size()), full = static_cast<int>(fullest);
    if (std::pair(spread, -full) > std::pair(out.nodes, out.nodes == 0 ? 0 : -out.ranks_per_node))
      out.nodes = spread, out.ranks_per_node = full;
    out.size = static_cast<int>(g.size());
  }
  out.node_bandwidth = BytesPerSecond(node_rate);
  out.network_bandwidth = BytesPerSecond(network);
  return out;
}

bool same(const GroupShape& a, const GroupShape& b) {
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-6 * y; };
  return a.size == b.size && a.nodes == b.nodes && a.ranks_per_node == b.ranks_per_node &&
         near(a.node_bandwidth.v, b.node_bandwidth.v) && near(a.network_bandwidth.v, b.network_bandwidth.v);
}

std::string text(const GroupShape& g) {
  std::ostringstream out;
  out << g.size << " ranks, " << g.nodes << " nodes, " << g.ranks_per_node << " a node, "
      << g.node_bandwidth.v / 1e9 << " GB/s inside, " << g.network_bandwidth.v / 1e9 << " GB/s between";
  return out.str();
}

void expect_same(const GroupShape& a, const GroupShape& b, const std::string& what) {
  EXPECT_TRUE(same(a, b)) << what << ": " << text(a) << " against " << text(b);
}

// The groups that lowering asks for, and odder ones.
template <class F>
void for_each_axes(F&& f) {
  const auto call = [&f](std::initializer_list<Axis> axes) { f(axes); };
  call({Axis::tp});
  call({Axis::cp});
  call({Axis::dp});
  call({Axis::pp});
  call({Axis::cp, Axis::dp});
  call({Axis::tp, Axis::dp});
  call({Axis::tp, Axis::cp, Axis::dp, Axis::pp});
}

}  // namespace

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
  c.node.gpus = 4, c.node.nics = 4, c.node.domain_nodes = 18, c.node.nvls = true;
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
  c.node.gpus = 4, c.node.nics = 4, c.node.link = NodeLinkKind::nvlink_mesh;
  c.fabric.bandwidth = BytesPerSecond(4 * c.node.nic_bandwidth.v);
  const Topology t(c);
  EXPECT_NEAR(t.group(RankGrid(plan(2, 1, 1, 4)), {Axis::tp}).node_bandwidth.v, 100e9, 1);
  EXPECT_NEAR(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::tp}).node_bandwidth.v, 300e9, 1);
  EXPECT_FALSE(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::tp}).switched);
}

TEST(Topology, PcieSwitchUplinksAreSharedByGroups) {
  ClusterSpec c = small_cluster(1);
  c.node.link = NodeLinkKind::pcie, c.node.link_bandwidth = 32_GBps, c.device.host_link = 32_GBps,
  c.node.nics = 2;
  c.fabric.bandwidth = BytesPerSecond(2 * c.node.nic_bandwidth.v);
  const Topology t(c);  // two switches of four GPUs
  EXPECT_NEAR(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::tp}).node_bandwidth.v, 32e9, 1);
  // dp = {i, i + 4}: four groups cross between the switches.
  EXPECT_NEAR(t.group(RankGrid(plan(4, 1, 1, 2)), {Axis::dp}).node_bandwidth.v, 8e9, 1);
}

TEST(Topology, CpuRanksShareTheMemoryOfTheirHost) {
  ClusterSpec c = small_cluster(1);
  c.node.link = NodeLinkKind::shared_memory, c.node.host_memory_bandwidth = 40_GBps,
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
  c.fabric.leaf_nodes = 2, c.fabric.oversubscription = 2;
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
  c.node.gpus = 2, c.node.nics = 2, c.fabric.leaf_nodes = 1, c.fabric.oversubscription = 2;
  c.fabric.bandwidth = BytesPerSecond(2 * c.node.nic_bandwidth.v);
  const std::string path = SEXTANT_SOURCE_DIR "/tests/golden/topology_2x2.dot";
  const std::string now = Topology(c).dot();
  if (std::getenv("SEXTANT_UPDATE_GOLDEN")) std::ofstream(path) << now;
  std::ostringstream golden;
  golden << std::ifstream(path).rdbuf();
  EXPECT_EQ(now, golden.str()) << "rewrite with SEXTANT_UPDATE_GOLDEN=1 and review the change";
}

namespace {
rc::Gen<ParallelPlan> any_plan(int most_ranks) {
  return rc::gen::exec([most_ranks] {
    ParallelPlan p;
    int left = most_ranks;
    const auto take = [&left] {
      const int n = *rc::gen::inRange(1, std::min(left, 12) + 1);
      left /= n;
      return n;
    };
    p.tp = take(), p.cp = take(), p.pp = take(), p.dp = take();
    std::array<Axis, 4> order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
    for (std::size_t i = 3; i > 0; --i)
      std::swap(order[i], order[static_cast<std::size_t>(*rc::gen::inRange(0, int(i) + 1))]);
    p.axis_order = order;
    return p;
  });
}

rc::Gen<ClusterSpec> any_cluster(bool defects) {
  return rc::gen::exec([defects] {
    ClusterSpec c = small_cluster(*rc::gen::inRange(1, 13));
    c.node.gpus = *rc::gen::element(2, 4, 6, 8);
    c.node.nics = *rc::gen::element(1, 2, 4, 8);
    c.fabric.bandwidth = BytesPerSecond(c.node.nics * c.node.nic_bandwidth.v);
    c.fabric.leaf_nodes = *rc::gen::element(0, 0, 2, 3, 4);
    c.fabric.oversubscription = *rc::gen::element(1.0, 2.0, 3.0);
    c.node.link = *rc::gen::element(NodeLinkKind::nvswitch, NodeLinkKind::nvlink_mesh);
    if (c.node.link == NodeLinkKind::nvswitch) c.node.domain_nodes = *rc::gen::element(1, 1, 2, 3);
    for (int i = defects ? *rc::gen::inRange(0, 4) : 0; i > 0; --i)
      c.defects.push_back({.node = *rc::gen::inRange(0, c.nodes),
                           .gpu = *rc::gen::inRange(-1, c.node.gpus),
                           .compute_factor = 1,
                           .node_link_factor = *rc::gen::element(0.25, 0.5, 1.0),
                           .network_factor = *rc::gen::element(0.25, 0.5, 1.0),
                           .missing = *rc::gen::element(false, false, true)});
    if (defects && *rc::gen::arbitrary<bool>())
      c.defects.push_back({.node = *rc::gen::inRange(0, c.nodes),
                           .nic = *rc::gen::inRange(0, c.node.nics),
                           .network_factor = *rc::gen::element(0.25, 0.5)});
    if (defects && c.fabric.leaf_nodes > 0 && c.fabric.leaf_nodes < c.nodes)
      c.defects.push_back({.nic = *rc::gen::inRange(-1, c.node.nics),
                           .leaf = *rc::gen::inRange(0, (c.nodes - 1) / c.fabric.leaf_nodes + 1),
                           .network_factor = *rc::gen::element(0.25, 0.5, 1.0)});
    return c;
  });
}
// plan_links() asks once for stages that the topology calls alike: each equals what the topology of an irregular cluster
// says, which takes nothing for granted.
RC_GTEST_PROP(PlanLinks, StagesCalledAlikeAreEachAsAsked, ()) {
  ClusterSpec c = small_cluster(16);
  if (*rc::gen::arbitrary<bool>()) c.fabric.leaf_nodes = 4, c.fabric.oversubscription = 2;
  if (*rc::gen::arbitrary<bool>()) c.node.nics = 4;
  const bool slow = *rc::gen::inRange(0, 4) == 0;
  if (slow) c.defects.push_back({.node = 9, .network_factor = 0.5});
  ClusterSpec irregular = c;  // by next to nothing
  irregular.defects.push_back({.node = 3, .compute_factor = 1 - 1e-12});
  const Topology topology(c), asked(irregular);
  int reordered = 0;
  for (int plans = *rc::gen::inRange(1, 6); plans > 0; --plans) {
    int left = c.gpus();
    const auto take = [&] {
      int d = 1;
      while (left > 1 && *rc::gen::inRange(0, 3) > 0) d *= 2, left /= 2;
      return d;
    };
    ParallelPlan p;
    p.tp = take(), p.pp = take(), p.cp = take(), p.dp = left;
    p.zero_stage = *rc::gen::inRange(0, 2);
    if (p.zero_stage > 0) p.shard_degree = 1 << *rc::gen::inRange(0, 6);
    if (p.replicas() % std::max(1, p.shards()) != 0) continue;
    for (std::size_t i = 3; i > 0; --i)
      std::swap(p.axis_order[i], p.axis_order[*rc::gen::inRange<std::size_t>(0, i + 1)]);
    const RankGrid grid(p);
    const PlanLinks links = plan_links(topology, p);
    RC_ASSERT(!slow || topology.stage_period(grid) == p.pp);
    ParallelPlan whole = p, plain = p;
    whole.zero_stage = whole.shard_degree = plain.zero_stage = plain.shard_degree = 0;
    plain.axis_order = topology.plain_order(p);
    const PlanLinks one = plan_links(topology, whole), other = plan_links(topology, plain);
    RC_ASSERT(one.world == other.world && one.tied == other.tied);
    for (int s = 0; s < p.pp; ++s) RC_ASSERT(one.of(s) == other.of(s));
    reordered += plain.axis_order != p.axis_order;
    for (int s = 0; s < p.pp; ++s) {
      if (p.tp > 1) RC_ASSERT(links.of(s).tp == asked.group(grid, {Axis::tp}, s));
      if (p.cp > 1) RC_ASSERT(links.of(s).cp == asked.group(grid, {Axis::cp}, s));
      if (p.pp > 1) RC_ASSERT(links.of(s).next == asked.stage_link(grid, s));
      if (p.shards() == 1 && p.replicas() > 1)
        RC_ASSERT(links.of(s).shard == asked.group(grid, {Axis::cp, Axis::dp}, s));
      if (p.shards() > 1 && p.shards() < p.replicas()) {
        RC_ASSERT(links.of(s).shard == asked.shard_groups(grid, s, p.shards()).shard);
        RC_ASSERT(links.of(s).replica == asked.shard_groups(grid, s, p.shards()).replica);
      }
    }
  }
  RC_ASSERT(reordered == 0 || !slow);
  RC_TAG(reordered > 0 ? "reordered" : "plain");
}

}  // namespace

RC_GTEST_PROP(TopologyProperty, EqualsBruteForceOverAllGroups, (bool defects)) {
  const ClusterSpec c = *any_cluster(defects);
  RC_PRE(c.gpus() > 0);
  const Topology t(c);
  // Several plans of one topology: what it remembers of one must not be given to another that differs.
  for (int plans = *rc::gen::inRange(1, 5); plans > 0; --plans) {
    const ParallelPlan p = *any_plan(c.gpus());
    const RankGrid grid(p);
    for_each_axes([&](auto axes) {
      for (int stage = -1; stage < std::min(p.pp, 3); ++stage)
        expect_same(t.group(grid, axes, stage), brute_force(c, grid, axes, stage), plan_key(p));
    });
  }
}

// Negative control: brute force that knows another cluster must be told apart, field by field.
TEST(Topology, ComparisonWithBruteForceSeesEachDifference) {
  const ClusterSpec c = small_cluster(4);
  const Topology t(c);
  const RankGrid grid(plan(4, 1, 1, 8));
  const auto agrees = [&](const ClusterSpec& other, std::initializer_list<Axis> axes) {
    return same(t.group(grid, axes), brute_force(other, grid, axes, -1));
  };
  EXPECT_TRUE(agrees(c, {Axis::tp}) && agrees(c, {Axis::dp}));
  ClusterSpec other = c;
  other.node.link_bandwidth = BytesPerSecond(299e9);
  EXPECT_FALSE(agrees(other, {Axis::tp}));
  other = c;
  other.node.nics = 4;  // pairs of GPUs share a NIC
  EXPECT_FALSE(agrees(other, {Axis::dp}));
  other = c;
  other.fabric.leaf_nodes = 2, other.fabric.oversubscription = 2;
  EXPECT_FALSE(agrees(other, {Axis::dp}));
  other = c;
  other.node.domain_nodes = 2;
  EXPECT_FALSE(agrees(other, {Axis::dp}));
  other = c;
  other.defects = {{.node = 3, .gpu = 7, .network_factor = 0.99}};
  EXPECT_FALSE(agrees(other, {Axis::dp}));
}

RC_GTEST_PROP(TopologyProperty, SlowerLinksNeverGiveABetterShape, ()) {
  const ClusterSpec c = *any_cluster(true);
  RC_PRE(c.gpus() > 0);
  ClusterSpec worse = c;
  worse.defects.push_back({.node = *rc::gen::inRange(0, c.nodes),
                           .gpu = *rc::gen::inRange(-1, c.node.gpus),
                           .node_link_factor = *rc::gen::element(0.3, 1.0),
                           .network_factor = *rc::gen::element(0.2, 1.0)});
  const ParallelPlan p = *any_plan(c.gpus());
  const RankGrid grid(p);
  const Topology a(c), b(worse);
  const double slack = 1 + 1e-9;
  for_each_axes([&](auto axes) {
    const GroupShape x = a.group(grid, axes), y = b.group(grid, axes);
    RC_ASSERT(y.node_bandwidth.v <= x.node_bandwidth.v * slack);
    RC_ASSERT(y.network_bandwidth.v <= x.network_bandwidth.v * slack);
    RC_ASSERT(y.nodes == x.nodes && y.ranks_per_node == x.ranks_per_node);
  });
  for (int stage = 0; stage < p.pp; ++stage)
    RC_ASSERT(b.stage_link(grid, stage).network_bandwidth.v <=
              a.stage_link(grid, stage).network_bandwidth.v * slack);
  RC_ASSERT(b.bisection().v <= a.bisection().v + 100);
}

// A stage's slowest link, found on representative pairs, equals the one found on all pairs: an ineffective
// defect (factor 1 - 1e-12) switches the symmetry off and changes nothing else.
RC_GTEST_PROP(TopologyProperty, StageLinkByBlocksEqualsAllPairs, ()) {
  const ClusterSpec c = *any_cluster(false);
  ClusterSpec all_pairs = c;
  all_pairs.defects.push_back({.node = *rc::gen::inRange(0, c.nodes), .compute_factor = 1 - 1e-12});
  const Topology a(c), b(all_pairs);
  for (int plans = *rc::gen::inRange(1, 5); plans > 0; --plans) {
    const ParallelPlan p = *any_plan(c.gpus());
    const RankGrid grid(p);
    for (int stage = 0; stage < p.pp; ++stage)
      expect_same(a.stage_link(grid, stage), b.stage_link(grid, stage), plan_key(p));
  }
}

RC_GTEST_PROP(TopologyProperty, OrderOfDefectsAndOfEqualNodesChangesNothing, ()) {
  ClusterSpec c = *any_cluster(true);
  c.fabric.leaf_nodes = 0, c.node.domain_nodes = 1;
  std::erase_if(c.defects, [](const Defect& d) { return d.missing || d.leaf >= 0; });
  ClusterSpec permuted = c;
  std::ranges::reverse(permuted.defects);
  for (Defect& d : permuted.defects) d.node = c.nodes - 1 - d.node;
  // Whole nodes a group: the data-parallel groups see every node, wherever the slow one stands.
  const RankGrid grid(plan(c.node.gpus, 1, 1, c.nodes));
  expect_same(Topology(c).group(grid, {Axis::dp}), Topology(permuted).group(grid, {Axis::dp}), "dp");
  expect_same(Topology(c).group(grid, {Axis::tp}), Topology(permuted).group(grid, {Axis::tp}), "tp");
  RC_ASSERT(c.nodes % 2 == 1 || std::abs(Topology(c).bisection().v - Topology(permuted).bisection().v) < 100);
}
