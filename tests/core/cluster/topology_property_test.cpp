// The topology's answers as properties of any cluster and plan, and against brute force over all groups.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/cluster/topology.hpp"
#include "core/plan/plan_links.hpp"
#include "tests/core/cluster/cluster_support.hpp"

using namespace sextant;
using sextant::test::plan;
using sextant::test::small_cluster;

namespace {

// Under one PCIe switch.
bool nic_serves(const ClusterSpec& c, int nic, int gpu) {
  const int bundles = std::gcd(c.node.gpus, c.node.nics);
  return nic / (c.node.nics / bundles) == gpu / (c.node.gpus / bundles);
}

// What the header promises, taken literally: every group, every rank, every sharer; no blocks, no graph.
// NOLINTNEXTLINE(readability-function-size): the definition, taken literally in one place
GroupShape brute_force(const ClusterSpec& c, const RankGrid& grid, std::initializer_list<Axis> axes,
                       int stage) {
  std::vector<std::pair<int, int>> places;  // rank -> node, GPU
  for (int n = 0; n < c.nodes; ++n)
    for (int g = 0; g < c.node.gpus; ++g) {
      const bool missing = std::ranges::any_of(
          c.defects, [&](const Defect& d) { return d.missing && d.node == n && (d.gpu < 0 || d.gpu == g); });
      if (!missing) places.emplace_back(n, g);
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
  const auto domain = [&](int r) { return places[std::size_t(r)].first / c.node.domain_nodes; };
  const auto bundle = [&](int r) {
    return std::pair(places[std::size_t(r)].first, places[std::size_t(r)].second / per);
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
      return c.fabric.leaf_nodes > 0 ? places[std::size_t(m)].first / c.fabric.leaf_nodes : 0;
    };
    const bool leaves_leaf = std::ranges::any_of(g, [&](int m) { return leaf(m) != leaf(g[0]); });
    std::size_t fullest = 0;
    double group_network = 0;
    for (const auto& [i, members] : by_domain) {
      fullest = std::max(fullest, members.size());
      std::map<std::pair<int, int>, int> mine;
      for (const int m : members) {
        ++mine[bundle(m)];
        const auto [node, gpu] = places[std::size_t(m)];
        if (members.size() > 1) {
          double links = c.node.link_bandwidth.v * factor(node, gpu, &Defect::node_link_factor);
          if (c.node.link == NodeLinkKind::nvlink_mesh) {
            links = 0;
            for (const int other : members)
              if (other != m)
                links += c.node.link_bandwidth.v / (c.node.gpus - 1) *
                         std::min(factor(node, gpu, &Defect::node_link_factor),
                                  factor(node, places[std::size_t(other)].second, &Defect::node_link_factor));
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
    if (std::pair(spread, -full) > std::pair(out.nodes, out.nodes == 0 ? 0 : -out.ranks_per_node)) {
      out.nodes = spread;
      out.ranks_per_node = full;
    }
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
    p.tp = take();
    p.cp = take();
    p.pp = take();
    p.dp = take();
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
  if (*rc::gen::arbitrary<bool>()) {
    c.fabric.leaf_nodes = 4;
    c.fabric.oversubscription = 2;
  }
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
      while (left > 1 && *rc::gen::inRange(0, 3) > 0) {
        d *= 2;
        left /= 2;
      }
      return d;
    };
    ParallelPlan p;
    p.tp = take();
    p.pp = take();
    p.cp = take();
    p.dp = left;
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
  other.fabric.leaf_nodes = 2;
  other.fabric.oversubscription = 2;
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
  c.fabric.leaf_nodes = 0;
  c.node.domain_nodes = 1;
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
