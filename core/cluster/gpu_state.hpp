// How is each GPU of a cluster? What its defects say, GPU by GPU.
#pragma once

#include <map>
#include <vector>

#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// A GPU by its place, which it keeps when others are lost.
struct GpuPlace {
  int node = 0, gpu = 0;
  auto operator<=>(const GpuPlace&) const = default;
};
// That it is not there.
Defect missing(const GpuPlace&);
// Usable GPUs by rank.
std::vector<GpuPlace> usable_gpus(const ClusterSpec&);

// The worst of all that the defects say about one GPU or the NICs of its node.
struct GpuState {
  double compute = 1, node_link = 1, network = 1;
  bool missing = false;
  bool operator==(const GpuState&) const = default;
};
// State of every GPU of every node that a defect names; other nodes are sound.
using DefectiveNodes = std::map<int, std::vector<GpuState>>;
DefectiveNodes defective_nodes(const ClusterSpec&);
GpuState state_of(const DefectiveNodes&, const GpuPlace&);

}  // namespace sextant
