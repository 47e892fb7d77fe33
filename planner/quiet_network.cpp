#include "planner/quiet_network.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/cluster_files.hpp"
#include "core/json_io.hpp"

namespace sextant {

namespace {

constexpr auto kNetwork = [](auto& io, auto& n) {
  io.required("fabric", n.fabric);
  io.required("preset", n.preset);
  io.required("efficiency", n.efficiency, above(0));
  io.required("latency_us", n.latency, at_least(0));
  io.optional("in_network", n.in_network);
  io.optional("reduces_inside", n.reduces_inside);
  io.required("source", n.source);
  io.required("date", n.date);
};

struct Networks {
  std::vector<QuietNetwork> list;
};
constexpr auto kNetworks = [](auto& io, auto& n) {
  io.ignored("about");
  io.required("fabrics", n.list);
};
void from_json(const nlohmann::json& j, Networks& n) { read_object(j, n, kNetworks); }

}  // namespace

void from_json(const nlohmann::json& j, QuietNetwork& n) { read_object(j, n, kNetwork); }

std::vector<QuietNetwork> load_quiet_networks(const std::filesystem::path& preset_dir) {
  return load_json<Networks>(preset_dir / "nccl_tests.json").list;
}

ClusterSpec quiet_cluster(const TestedHardware& on, const std::vector<QuietNetwork>& networks,
                          const std::filesystem::path& preset_dir) {
  ClusterSpec usual = load_cluster(on.device, preset_dir);
  if (on.nodes <= 1 && on.ranks <= usual.node.gpus)
    return usual;  // also where a table calls the ranks a node
  const int per_node = std::max(1, on.gpus_per_node);
  const auto shape = fmt::format("{}x{}x{}", (on.ranks + per_node - 1) / per_node, per_node, on.device);
  if (on.ranks <= per_node * usual.node.domain_nodes) return load_cluster(shape, preset_dir);
  const auto at = std::find_if(networks.begin(), networks.end(), [&](const QuietNetwork& n) {
    return on.fabric.find(n.fabric) != std::string::npos;
  });
  if (at == networks.end()) {
    std::vector<std::string> known;
    for (const QuietNetwork& n : networks) known.push_back(n.fabric);
    throw ConfigError(
        Problem{"", "fabric", on.fabric, fmt::format("a text with one of {}", fmt::join(known, ", ")), ""});
  }
  ClusterSpec c = load_cluster(shape + "@" + at->preset, preset_dir);
  c.fabric.efficiency = at->efficiency, c.fabric.latency = at->latency;
  c.fabric.in_network = at->in_network;
  c.fabric.reduces_inside = c.fabric.reduces_inside || at->reduces_inside;
  if (on.node_network.v > 0) {
    c.fabric.bandwidth = on.node_network;
    c.node.nic_bandwidth = on.node_network / c.node.nics;
  }
  return c;
}

}  // namespace sextant
