#include "core/runs/row_cluster.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/named_words.hpp"
#include "core/cluster/fabric_words.hpp"

namespace sextant {

namespace {

constexpr double kSameRate = 0.1;

void set_rate(ClusterSpec& c, double node) {
  c.fabric.bandwidth = BytesPerSecond(node);
  c.node.nic_bandwidth = BytesPerSecond(node / std::max(1, c.node.nics));
}

// Where words and number of a network contradict each other, the number counts.
void use_stated_rate(const RunRow& row, ClusterOfRow& out) {
  if (row.nodes < 2 || !row.node_network || !(out.spec.fabric.bandwidth.v > 0)) return;
  const double usual = out.spec.fabric.bandwidth.v, stated = row.node_network->v;
  if (std::abs(stated / usual - 1) <= kSameRate) return;
  set_rate(out.spec, stated);
  out.note = fmt::format("fabric '{}' is taken as {} at the stated {:.4g} GB/s a node, not the usual {:.4g}",
                         row.fabric, out.spec.fabric.name, stated / 1e9, usual / 1e9);
}

bool applies(const ClusterRule& rule, const RunRow& row) {
  const bool fabric = rule.family.empty() ? names(row.fabric, rule.fabric, Ends::anywhere)
                                          : names(fabric_words(row.fabric), rule.fabric, Ends::anywhere);
  return fabric && names(row.framework, rule.framework, Ends::with_word) &&
         names(row.gpu, rule.gpu, Ends::anywhere);
}

// Of a family by the ports that the words state, else by one for each device.
ClusterOfRow of_family(const RunRow& row, const ClusterRule& rule, const std::string& nodes,
                       const PresetsRead& read, const std::filesystem::path& presets) {
  FabricPorts ports = fabric_ports(row.fabric);
  const bool counted = ports.count > 0 || ports.per_gpu, rated = ports.gbps > 0;
  if (ports.count == 0) ports.count = std::max(1, row.gpus_per_node);
  if (!rated) ports.gbps = rule.port_Gbps;
  const std::string exact = fmt::format("{}-{}x{:g}", rule.family, ports.count, ports.gbps);
  if (std::filesystem::exists(presets / "fabrics" / (exact + ".json"))) {
    ClusterOfRow out{read.cluster(nodes + "@" + exact, presets)};
    out.guessed = row.nodes > 1 && !counted && !row.node_network;
    if (out.guessed)
      out.note = fmt::format("fabric '{}' is taken as {}, a port for each GPU", row.fabric, exact);
    return out;
  }
  ClusterOfRow out{read.cluster(nodes + "@" + rule.preset, presets)};
  if (row.nodes < 2 || row.node_network) return out;
  out.guessed = !(counted && ports.gbps > 0);
  const double usual = out.spec.fabric.bandwidth.v, said = ports.count * ports.gbps / 8 * 1e9;
  if (said > 0 && (counted || rated)) {
    out.spec.node.nics = ports.count;
    set_rate(out.spec, said);
  }
  if (const double rate = out.spec.fabric.bandwidth.v; out.guessed || std::abs(rate / usual - 1) > kSameRate)
    out.note = fmt::format("fabric '{}' is taken as {} at {:.4g} GB/s a node", row.fabric,
                           out.spec.fabric.name, rate / 1e9);
  return out;
}

}  // namespace

ClusterOfRow cluster_of(const RunRow& row, const FrameworkMap& map, const std::filesystem::path& presets) {
  const PresetsRead& read = map.presets;
  const std::string counts = fmt::format("{}x{}x", row.nodes, row.gpus_per_node);
  const auto rule = std::ranges::find_if(map.clusters, [&](const ClusterRule& r) { return applies(r, row); });
  if (rule != map.clusters.end()) {
    ClusterOfRow out;
    if (!rule->family.empty()) {
      out = of_family(row, *rule, counts + row.gpu, read, presets);
    } else if (!rule->cluster.empty()) {
      out.spec = read.cluster(counts + rule->cluster, presets);
      // The same nodes are sold with devices of several sizes.
      if (const DeviceSpec device = read.device(row.gpu, presets); device.name != out.spec.device.name)
        out.spec.device = device;
    } else {
      out.spec = read.cluster(counts + row.gpu + "@" + rule->preset, presets);
    }
    use_stated_rate(row, out);
    return out;
  }
  // A network that no rule knows: the usual one of this device, at the rate that the row states.
  ClusterOfRow out{read.cluster(counts + row.gpu, presets)};
  if (row.nodes < 2) return out;
  out.guessed = !row.node_network;
  if (row.node_network) set_rate(out.spec, row.node_network->v);
  out.note = fmt::format(
      "{}; taken as {}{}",
      row.fabric.empty() ? "fabric is not stated" : fmt::format("fabric '{}' is not known", row.fabric),
      out.spec.fabric.name, row.node_network ? " at the stated rate" : ", usual beside this device");
  return out;
}

}  // namespace sextant
