#include "core/cluster/cluster_graph.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>

#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/filtered_graph.hpp>
#include <boost/graph/graphviz.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <fmt/format.h>

namespace sextant {

NodeParts parts_of(const ClusterSpec& spec) {
  const NodeSpec& node = spec.node;
  NodeParts parts;
  parts.network = node.nics > 0 && spec.fabric.bandwidth.v > 0;
  // CPU ranks reach every NIC of their host; GPUs have theirs near them, as evenly as the counts allow.
  if (node.link != NodeLinkKind::shared_memory && node.nics > 0)
    parts.bundles = std::gcd(node.gpus, node.nics);
  parts.gpus_per_bundle = node.gpus / parts.bundles;
  if (parts.network) {
    const double nic = std::min(node.nic_bandwidth.v, spec.fabric.bandwidth.v / node.nics);
    parts.bundle = BytesPerSecond(nic * node.nics / parts.bundles * spec.fabric.efficiency);
  }
  parts.domains = (spec.nodes + node.domain_nodes - 1) / node.domain_nodes;
  return parts;
}

UplinkFactors::UplinkFactors(const ClusterSpec& spec) {
  if (std::ranges::all_of(spec.defects, [](const Defect& d) { return d.leaf < 0; })) return;
  const NodeParts parts = parts_of(spec);
  if (spec.fabric.rails) rails_ = parts.bundles;
  const int leaves = (spec.nodes + spec.fabric.leaf_nodes - 1) / spec.fabric.leaf_nodes;
  factors_.assign(static_cast<std::size_t>(leaves * rails_), 1.0);
  for (const Defect& d : spec.defects) {
    if (d.leaf < 0) continue;
    for (int rail = 0; rail < rails_; ++rail) {
      if (d.nic >= 0 && parts.bundle_of_nic(spec.node, d.nic) != rail) continue;
      double& factor = factors_[static_cast<std::size_t>(d.leaf * rails_ + rail)];
      factor = std::min(factor, d.network_factor);
    }
  }
}

std::size_t ClusterGraph::vertex(const ClusterVertex& v) {
  const auto [it, fresh] = at_.try_emplace(v, 0);
  if (fresh) it->second = boost::add_vertex(v, graph_);
  return it->second;
}

void ClusterGraph::link(const ClusterVertex& a, const ClusterVertex& b, double bandwidth, double latency) {
  const auto from = vertex(a), to = vertex(b);
  boost::add_edge(from, to, ClusterLink{bandwidth, latency}, graph_);
}

namespace {
std::vector<int> all_nodes(const ClusterSpec& spec) {
  std::vector<int> nodes(static_cast<std::size_t>(spec.nodes));
  std::iota(nodes.begin(), nodes.end(), 0);
  return nodes;
}

int leaf_group(const FabricSpec& fabric, int node) {
  return fabric.leaf_nodes > 0 ? node / fabric.leaf_nodes : 0;
}

// A bundle is as slow as the slowest NIC that a defect names in it.
double bundle_factor(const std::vector<GpuState>& gpus, int bundle, int per_bundle) {
  double factor = 1;
  for (int g = bundle * per_bundle; g < (bundle + 1) * per_bundle; ++g)
    factor = std::min(factor, gpus[static_cast<std::size_t>(g)].network);
  return factor;
}
}  // namespace

ClusterGraph::ClusterGraph(const ClusterSpec& spec) : ClusterGraph(spec, all_nodes(spec)) {}

ClusterGraph::ClusterGraph(const ClusterSpec& spec, const std::vector<int>& nodes) {
  using enum VertexKind;
  const NodeSpec& node = spec.node;
  const FabricSpec& fabric = spec.fabric;
  const NodeParts parts = parts_of(spec);
  const auto defective = defective_nodes(spec);
  const UplinkFactors uplinks(spec);
  const std::vector<GpuState> sound(static_cast<std::size_t>(node.gpus));
  const double hop = node.link_latency.v, host_link = spec.device.host_link.v;
  const bool mesh = node.link == NodeLinkKind::nvlink_mesh, shared = node.link == NodeLinkKind::shared_memory;
  const bool two_levels = fabric.leaf_nodes > 0 && fabric.leaf_nodes < spec.nodes;

  for (const int n : nodes) {
    const auto found = defective.find(n);
    const auto& state = found == defective.end() ? sound : found->second;
    for (int g = 0; g < node.gpus; ++g) {
      const auto& s = state[static_cast<std::size_t>(g)];
      if (s.missing) continue;
      const ClusterVertex self{gpu, n, g}, near{pcie, n, g / parts.gpus_per_bundle};
      vertex(self);
      const double port = node.link_bandwidth.v * s.node_link;
      if (node.link == NodeLinkKind::nvswitch)
        link(self, {nvswitch, n / node.domain_nodes, 0}, port, hop / 2);
      for (int peer = 0; mesh && peer < g; ++peer) {
        const auto& other = state[static_cast<std::size_t>(peer)];
        if (other.missing) continue;
        const double worst = std::min(s.node_link, other.node_link);
        link({gpu, n, peer}, self, node.link_bandwidth.v / (node.gpus - 1) * worst, hop);
      }
      if (shared)
        link(self, {host, n, 0}, port, hop / 2);
      else if (node.link == NodeLinkKind::pcie)
        link(self, near, std::min(port, host_link), hop / 2);
      else
        link(self, near, host_link, 0);
    }
    for (int b = 0; b < parts.bundles; ++b) {
      const ClusterVertex near = shared ? ClusterVertex{host, n, 0} : ClusterVertex{pcie, n, b};
      if (!shared) link(near, {host, n, 0}, host_link, 0);
      if (!parts.network) continue;
      const double rate = parts.bundle.v * bundle_factor(state, b, parts.gpus_per_bundle);
      const ClusterVertex leaf_switch{leaf, leaf_group(fabric, n), fabric.rails ? b : 0};
      link(near, {nic, n, b}, rate, 0);
      const bool first_seen = !has(leaf_switch);
      link({nic, n, b}, leaf_switch, rate, fabric.latency.v / 2);
      if (two_levels && first_seen) {
        const double down = parts.bundle.v * (fabric.rails ? 1 : parts.bundles) * fabric.leaf_nodes;
        link(leaf_switch, {spine, 0, 0},
             down / fabric.oversubscription * uplinks.of(leaf_switch.node, leaf_switch.index), 0);
      }
    }
  }
}

BytesPerSecond ClusterGraph::capacity(const ClusterVertex& a, const ClusterVertex& b) const {
  if (!has(a) || !has(b)) return {};
  const auto [e, found] = boost::edge(at_.at(a), at_.at(b), graph_);
  return BytesPerSecond(found ? graph_[e].bandwidth : 0);
}

// Dijkstra with "min along the path" for plus and "greater" for less: the widest path (Pollack 1960).
std::vector<double> ClusterGraph::widest_from(const ClusterVertex& from) const {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  std::vector<double> width(boost::num_vertices(graph_));
  boost::dijkstra_shortest_paths(graph_, at_.at(from),
                                 boost::weight_map(boost::get(&ClusterLink::bandwidth, graph_))
                                     .distance_map(boost::make_iterator_property_map(
                                         width.begin(), boost::get(boost::vertex_index, graph_)))
                                     .distance_compare(std::greater<double>())
                                     .distance_combine([](double a, double b) { return std::min(a, b); })
                                     .distance_inf(0.0)
                                     .distance_zero(kInfinite));
  return width;
}

ClusterGraph::Path ClusterGraph::widest_path(const ClusterVertex& from, const ClusterVertex& to) const {
  const double width = widest_from(from)[at_.at(to)];
  if (width <= 0) return {};
  // (width, latency) together has no optimal substructure: keep the links that are wide enough, then shortest
  // path.
  const auto wide = [this, width](const Graph::edge_descriptor& e) { return graph_[e].bandwidth >= width; };
  const boost::filtered_graph<Graph, std::function<bool(const Graph::edge_descriptor&)>> kept(graph_, wide);
  std::vector<double> latency(boost::num_vertices(graph_));
  boost::dijkstra_shortest_paths(kept, at_.at(from),
                                 boost::weight_map(boost::get(&ClusterLink::latency, graph_))
                                     .distance_map(boost::make_iterator_property_map(
                                         latency.begin(), boost::get(boost::vertex_index, graph_))));
  return {BytesPerSecond(width), Seconds(latency[at_.at(to)])};
}

namespace {
// Maximum flow = minimum cut. Every link is a pair of opposite arcs; capacities are whole bytes per second,
// so that push-relabel is exact.
class FlowNetwork {
  using Capacity = std::int64_t;
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  struct Arc {
    Capacity capacity = 0, residual = 0;
    Traits::edge_descriptor reverse{};
  };
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, Arc>;
  Graph graph_;
  std::size_t source_, sink_;
  std::vector<Capacity> attached_;  // of all links of a vertex: no more can leave or enter it

 public:
  explicit FlowNetwork(std::size_t vertices)
      : graph_(vertices + 2), source_(vertices), sink_(vertices + 1), attached_(vertices + 2) {}
  void link(std::size_t a, std::size_t b, Capacity capacity) {
    const auto forth = boost::add_edge(a, b, Arc{capacity, 0, {}}, graph_).first;
    const auto back = boost::add_edge(b, a, Arc{capacity, 0, {}}, graph_).first;
    graph_[forth].reverse = back;
    graph_[back].reverse = forth;
    attached_[a] += capacity;
    attached_[b] += capacity;
  }
  void link(std::size_t a, std::size_t b, double bandwidth) { link(a, b, static_cast<Capacity>(bandwidth)); }
  // After all other links.
  void put_left(std::size_t v) { link(source_, v, Capacity(attached_[v])); }
  void put_right(std::size_t v) { link(v, sink_, Capacity(attached_[v])); }
  BytesPerSecond min_cut() {
    return BytesPerSecond(static_cast<double>(boost::push_relabel_max_flow(
        graph_, source_, sink_, boost::get(&Arc::capacity, graph_), boost::get(&Arc::residual, graph_),
        boost::get(&Arc::reverse, graph_), boost::get(boost::vertex_index, graph_))));
  }
};
}  // namespace

BytesPerSecond ClusterGraph::min_cut(const std::vector<ClusterVertex>& left,
                                     const std::vector<ClusterVertex>& right) const {
  FlowNetwork flow(boost::num_vertices(graph_));
  for (const auto e : boost::make_iterator_range(boost::edges(graph_)))
    flow.link(boost::source(e, graph_), boost::target(e, graph_), graph_[e].bandwidth);
  for (const auto& v : left) flow.put_left(at_.at(v));
  for (const auto& v : right) flow.put_right(at_.at(v));
  return flow.min_cut();
}

BytesPerSecond network_cut(const ClusterSpec& spec, int cut) {
  const NodeParts parts = parts_of(spec);
  if (!parts.network) return {};
  const auto defective = defective_nodes(spec);
  const std::vector<GpuState> sound(static_cast<std::size_t>(spec.node.gpus));
  const int rails = spec.fabric.rails ? parts.bundles : 1;
  const int leaves = leaf_group(spec.fabric, spec.nodes - 1) + 1;
  const auto nodes = static_cast<std::size_t>(spec.nodes);
  const auto leaf = [&](int group, int rail) {
    return nodes + static_cast<std::size_t>(group * rails + rail);
  };
  const std::size_t spine = leaf(leaves, 0);
  FlowNetwork flow(spine + 1);
  for (int n = 0; n < spec.nodes; ++n) {
    const auto found = defective.find(n);
    const auto& state = found == defective.end() ? sound : found->second;
    const auto self = static_cast<std::size_t>(n);
    for (int b = 0; b < parts.bundles; ++b)
      flow.link(self, leaf(leaf_group(spec.fabric, n), spec.fabric.rails ? b : 0),
                parts.bundle.v * bundle_factor(state, b, parts.gpus_per_bundle));
    n < cut ? flow.put_left(self) : flow.put_right(self);
  }
  const UplinkFactors uplinks(spec);
  const double down = parts.bundle.v * parts.bundles / rails * spec.fabric.leaf_nodes;
  for (int group = 0; leaves > 1 && group < leaves; ++group)
    for (int rail = 0; rail < rails; ++rail)
      flow.link(leaf(group, rail), spine, down / spec.fabric.oversubscription * uplinks.of(group, rail));
  return flow.min_cut();
}

std::string ClusterGraph::dot() const {
  static constexpr std::array<std::string_view, 7> names = {"gpu", "nvswitch", "pcie", "host",
                                                            "nic", "leaf",     "spine"};
  static constexpr std::array<std::string_view, 7> shapes = {"box",     "diamond",   "point",    "ellipse",
                                                             "hexagon", "trapezium", "trapezium"};
  std::ostringstream out;
  boost::write_graphviz(
      out, graph_,
      [this](std::ostream& o, std::size_t v) {
        const auto& x = graph_[v];
        const auto kind = static_cast<std::size_t>(x.kind);
        o << fmt::format("[label=\"{} {}.{}\", shape={}]", names[kind], x.node, x.index, shapes[kind]);
      },
      [this](std::ostream& o, const Graph::edge_descriptor& e) {
        o << fmt::format("[label=\"{:.4g} GB/s\"]", graph_[e].bandwidth / 1e9);
      },
      [](std::ostream& o) { o << "graph [layout=dot]\nnode [fontsize=10]\nedge [fontsize=8]\n"; });
  return out.str();
}

}  // namespace sextant
