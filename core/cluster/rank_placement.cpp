#include "core/cluster/rank_placement.hpp"

#include <algorithm>
#include <numeric>

namespace sextant {
namespace {

DomainKind make_kind(const ClusterSpec& spec, const NodeParts& parts, int first_node, int nodes,
                     std::vector<GpuState> state) {
  using enum VertexKind;
  const int gpus = spec.node.gpus;
  std::vector<int> members(static_cast<std::size_t>(nodes));
  std::iota(members.begin(), members.end(), first_node);
  const ClusterGraph graph(spec, members);
  DomainKind kind{std::move(state), {}, {}, {}};
  const auto slots = static_cast<std::size_t>(nodes * gpus);
  kind.pair.assign(slots * slots, 0);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const int node = first_node + static_cast<int>(slot) / gpus, g = static_cast<int>(slot) % gpus;
    const ClusterVertex self{gpu, node, g};
    if (!graph.has(self)) {
      kind.port.push_back(0);
      continue;
    }
    double port = 0;
    switch (spec.node.link) {
      case NodeLinkKind::nvswitch:
        port = graph.capacity(self, {nvswitch, node / spec.node.domain_nodes, 0}).v;
        break;
      case NodeLinkKind::nvlink_mesh:
        for (int peer = 0; peer < gpus; ++peer) port += graph.capacity(self, {gpu, node, peer}).v;
        break;
      case NodeLinkKind::pcie:
        port = graph.capacity(self, {pcie, node, g / parts.gpus_per_bundle}).v;
        break;
      case NodeLinkKind::shared_memory:
        port = graph.capacity(self, {host, node, 0}).v;
        break;
    }
    kind.port.push_back(port);
    const auto width = graph.widest_from(self);
    for (std::size_t peer = 0; peer < slots; ++peer) {
      const ClusterVertex other{gpu, first_node + static_cast<int>(peer) / gpus,
                                static_cast<int>(peer) % gpus};
      if (peer != slot && graph.has(other)) kind.pair[slot * slots + peer] = width[graph.number(other)];
    }
  }
  for (int node = first_node; node < first_node + nodes; ++node)
    for (int b = 0; b < parts.bundles; ++b) {
      const ClusterVertex near = spec.node.link == NodeLinkKind::shared_memory ? ClusterVertex{host, node, 0}
                                                                               : ClusterVertex{pcie, node, b};
      kind.bundle.push_back(graph.capacity(near, {nic, node, b}).v);
    }
  return kind;
}

}  // namespace

RankPlacement::RankPlacement(const ClusterSpec& s)
    : spec(s), parts(parts_of(s)), uplinks(s), uniform(uplinks.all_sound()) {
  const auto defective = defective_nodes(spec);
  const int gpus = spec.node.gpus, per_domain = spec.node.domain_nodes;
  const std::vector<GpuState> sound(static_cast<std::size_t>(gpus));
  places.reserve(static_cast<std::size_t>(spec.nodes) * static_cast<std::size_t>(gpus));
  int plain_kind = -1;
  for (int domain = 0; domain < parts.domains; ++domain) {
    const int first = domain * per_domain, nodes = std::min(per_domain, spec.nodes - first);
    const auto it = defective.lower_bound(first);
    const bool plain = nodes == per_domain && (it == defective.end() || it->first >= first + nodes);
    int kind = plain ? plain_kind : -1;
    if (kind < 0) {
      std::vector<GpuState> state;
      for (int n = first; n < first + nodes; ++n) {
        const auto found = defective.find(n);
        const auto& here = found == defective.end() ? sound : found->second;
        state.insert(state.end(), here.begin(), here.end());
      }
      const auto same = std::ranges::find(kinds, state, &DomainKind::state);
      kind = static_cast<int>(same - kinds.begin());
      if (same == kinds.end()) kinds.push_back(make_kind(spec, parts, first, nodes, std::move(state)));
      if (plain) plain_kind = kind;
    }
    uniform = uniform && plain;
    const DomainKind& k = kinds[static_cast<std::size_t>(kind)];
    for (int slot = 0; slot < nodes * gpus; ++slot) {
      const int node = first + slot / gpus;
      const int bundle = node * parts.bundles + slot % gpus / parts.gpus_per_bundle;
      if (slot % parts.gpus_per_bundle == 0) {
        bundle_first.push_back(static_cast<int>(places.size()));
        bundle_rate.push_back(k.bundle[static_cast<std::size_t>(slot / parts.gpus_per_bundle)]);
      }
      if (k.state[static_cast<std::size_t>(slot)].missing) continue;
      const int leaf = spec.fabric.leaf_nodes > 0 ? node / spec.fabric.leaf_nodes : 0;
      places.push_back({domain, node, leaf, bundle, slot, kind});
    }
  }
  bundle_first.push_back(static_cast<int>(places.size()));
  period = gpus * per_domain;
  if (leaves_matter()) period = std::lcm(period, gpus * spec.fabric.leaf_nodes);
}

}  // namespace sextant
