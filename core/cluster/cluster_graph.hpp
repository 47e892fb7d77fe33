// The cluster as a Boost graph: GPUs, NVSwitch or NVLink mesh, PCIe switches, hosts, NICs, leaf and spine
// switches; edges carry a capacity per direction and a latency. Answers widest paths and minimum cuts. Only
// core/cluster/topology.cpp and tests look inside. The NICs that hang on one PCIe switch are one vertex (a bundle):
// they serve the same GPUs. Ignores routing tables, NUMA distance between sockets and traffic of other jobs.
#pragma once

#include <compare>
#include <map>
#include <string>
#include <vector>

#include <boost/graph/adjacency_list.hpp>

#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/gpu_state.hpp"

namespace sextant {

// What a node is made of, derived from its numbers.
struct NodeParts {
  int bundles = 1;          // PCIe switches, each with an equal share of the GPUs and of the NICs
  int gpus_per_bundle = 1;  // GPUs under one PCIe switch
  BytesPerSecond bundle;    // reachable network rate of one bundle, per direction: efficiency included
  int domains = 1;          // NVLink domains of the cluster
  bool network = false;     // has NICs at all
  int bundle_of_nic(const NodeSpec& node, int nic) const { return nic / (node.nics / bundles); }
};
NodeParts parts_of(const ClusterSpec&);

// What is left of the speed of a leaf switch's uplinks.
class UplinkFactors {
 public:
  explicit UplinkFactors(const ClusterSpec&);
  bool all_sound() const { return factors_.empty(); }
  double of(int leaf, int bundle) const {
    return factors_.empty() ? 1 : factors_[static_cast<std::size_t>(leaf * rails_ + bundle % rails_)];
  }

 private:
  int rails_ = 1;
  std::vector<double> factors_;  // by leaf and rail; empty when no defect names one
};

enum class VertexKind : std::uint8_t { gpu, nvswitch, pcie, host, nic, leaf, spine };

struct ClusterVertex {
  VertexKind kind = VertexKind::gpu;
  int node = 0;   // of an NVSwitch: its domain; of a leaf: its group of nodes
  int index = 0;  // of a NIC bundle, PCIe switch or leaf: its rail
  auto operator<=>(const ClusterVertex&) const = default;
};

struct ClusterLink {
  double bandwidth = 0;  // bytes/s, each direction
  double latency = 0;    // s
};

class ClusterGraph {
 public:
  using Graph =
      boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, ClusterVertex, ClusterLink>;
  struct Path {
    BytesPerSecond bandwidth;  // of its narrowest link; 0 when there is no path
    Seconds latency;           // of the quickest among the widest paths
  };

  explicit ClusterGraph(const ClusterSpec&);                        // every node
  ClusterGraph(const ClusterSpec&, const std::vector<int>& nodes);  // only these, with what connects them

  const Graph& graph() const { return graph_; }
  bool has(const ClusterVertex& v) const { return at_.contains(v); }
  // Capacity of the link between two neighbours; 0 when they are not linked.
  BytesPerSecond capacity(const ClusterVertex& a, const ClusterVertex& b) const;
  Path widest_path(const ClusterVertex& from, const ClusterVertex& to) const;
  std::vector<double> widest_from(const ClusterVertex& from) const;  // to each vertex by its number, bytes/s
  std::size_t number(const ClusterVertex& v) const { return at_.at(v); }
  // Least capacity of links whose loss separates the two sets.
  BytesPerSecond min_cut(const std::vector<ClusterVertex>& left,
                         const std::vector<ClusterVertex>& right) const;
  std::string dot() const;

 private:
  std::size_t vertex(const ClusterVertex&);
  void link(const ClusterVertex&, const ClusterVertex&, double bandwidth, double latency);
  Graph graph_;
  std::map<ClusterVertex, std::size_t> at_;
};

// Least capacity between nodes [0, cut) and the rest, each node one vertex: for clusters too large to draw
// whole.
BytesPerSecond network_cut(const ClusterSpec&, int cut);

}  // namespace sextant
