// Where every rank of a cluster sits: NVLink domains, nodes, leaves and NICs, and what its links there can carry.
// NVLink domains of one kind are alike down to their defects; the graph of one of them answers for all. Internal to
// core/cluster.
#pragma once

#include <vector>

#include "core/cluster/cluster_graph.hpp"
#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// An NVLink domain is an NVLink domain: one node, or the nodes of one NVL72 system.
struct DomainKind {
  std::vector<GpuState> state;  // by slot = node in the domain * GPUs per node + GPU
  std::vector<double> port;     // of each slot: its links inside the NVLink domain, bytes/s
  std::vector<double> bundle;   // network rate of each NIC bundle, bytes/s
  std::vector<double> pair;     // slot x slot: widest path
};

// Bundles are numbered over the whole cluster, in rank order.
struct RankPlace {
  int domain = 0, node = 0, leaf = 0, bundle = 0;
  int slot = 0;  // in its NVLink domain
  int kind = 0;  // of its NVLink domain
};

struct RankPlacement {
  ClusterSpec spec;
  NodeParts parts;
  std::vector<DomainKind> kinds;
  std::vector<RankPlace> places;    // by rank
  std::vector<int> bundle_first;    // first rank of each bundle, and one past the end
  std::vector<double> bundle_rate;  // by bundle
  UplinkFactors uplinks;
  int period = 1;       // ranks after which the cluster repeats itself
  bool uniform = true;  // every NVLink domain alike, and every leaf

  explicit RankPlacement(const ClusterSpec&);
  const RankPlace& place(int rank) const { return places[static_cast<std::size_t>(rank)]; }
  double port(int rank) const {
    const RankPlace& s = place(rank);
    return kinds[static_cast<std::size_t>(s.kind)].port[static_cast<std::size_t>(s.slot)];
  }
  const GpuState& state(int rank) const {
    const RankPlace& s = place(rank);
    return kinds[static_cast<std::size_t>(s.kind)].state[static_cast<std::size_t>(s.slot)];
  }
  double uplink_factor(const RankPlace& s) const { return uplinks.of(s.leaf, s.bundle % parts.bundles); }
  bool leaves_matter() const {
    return spec.fabric.leaf_nodes > 0 && (spec.fabric.oversubscription > 1 || !uplinks.all_sound());
  }
};

}  // namespace sextant
