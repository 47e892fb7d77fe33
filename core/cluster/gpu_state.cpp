#include "core/cluster/gpu_state.hpp"

#include <algorithm>

#include "core/cluster/cluster_graph.hpp"

namespace sextant {

DefectiveNodes defective_nodes(const ClusterSpec& spec) {
  DefectiveNodes found;
  const NodeParts parts = parts_of(spec);
  for (const Defect& d : spec.defects) {
    if (d.node < 0) continue;
    const auto touches = [&](int g) {
      return (d.gpu < 0 || d.gpu == g) &&
             (d.nic < 0 || parts.bundle_of_nic(spec.node, d.nic) == g / parts.gpus_per_bundle);
    };
    auto& gpus = found.try_emplace(d.node, static_cast<std::size_t>(spec.node.gpus)).first->second;
    for (int g = 0; g < spec.node.gpus; ++g) {
      if (!touches(g)) continue;
      GpuState& s = gpus[static_cast<std::size_t>(g)];
      s.compute = std::min(s.compute, d.compute_factor);
      s.node_link = std::min(s.node_link, d.node_link_factor);
      s.network = std::min(s.network, d.network_factor);
      s.missing = s.missing || d.missing;
    }
  }
  std::erase_if(found, [&](const auto& entry) {
    return std::ranges::all_of(entry.second, [](const GpuState& s) { return s == GpuState{}; });
  });
  return found;
}

Defect missing(const GpuPlace& gpu) {
  Defect d;
  d.node = gpu.node;
  d.gpu = gpu.gpu;
  d.missing = true;
  return d;
}

GpuState state_of(const DefectiveNodes& defective, const GpuPlace& gpu) {
  const auto node = defective.find(gpu.node);
  return node == defective.end() ? GpuState{} : node->second[static_cast<std::size_t>(gpu.gpu)];
}

std::vector<GpuPlace> usable_gpus(const ClusterSpec& cluster) {
  const DefectiveNodes defective = defective_nodes(cluster);
  std::vector<GpuPlace> usable;
  for (int node = 0; node < cluster.nodes; ++node)
    for (int gpu = 0; gpu < cluster.node.gpus; ++gpu)
      if (!state_of(defective, {node, gpu}).missing) usable.push_back({node, gpu});
  return usable;
}

}  // namespace sextant
