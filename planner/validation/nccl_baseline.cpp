#include "planner/validation/nccl_baseline.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/cluster/cluster_files.hpp"

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
  io.ignored("origin");
};

struct Networks {
  std::vector<NcclBaseline> list;
};
constexpr auto kNetworks = [](auto& io, auto& n) {
  io.ignored("about");
  io.required("fabrics", n.list);
};
void from_json(const nlohmann::json& j, Networks& n) { read_object(j, n, kNetworks); }

// Do the ranks leave one domain of NVLink?
bool crosses(const TestedHardware& on, const ClusterSpec& usual) {
  if (on.nodes <= 1 && on.ranks <= usual.node.gpus) return false;
  return on.ranks > std::max(1, on.gpus_per_node) * usual.node.domain_nodes;
}

// `usual`: one node of the device, as its preset has it.
ClusterSpec tested_cluster(const TestedHardware& on, ClusterSpec usual, const std::string& fabric,
                           const std::filesystem::path& preset_dir) {
  if (!crosses(on, usual) && on.ranks <= usual.node.gpus)
    return usual;  // also where a table calls the ranks a node
  const int per_node = std::max(1, on.gpus_per_node);
  const bool across = crosses(on, usual) && !fabric.empty();
  return load_cluster(fmt::format("{}x{}x{}{}", (on.ranks + per_node - 1) / per_node, per_node, on.device,
                                  across ? "@" + fabric : ""),
                      preset_dir);
}

}  // namespace

void from_json(const nlohmann::json& j, NcclBaseline& n) { read_object(j, n, kNetwork); }

std::vector<NcclBaseline> load_nccl_baselines(const std::filesystem::path& preset_dir) {
  return load_json<Networks>(preset_dir / "nccl_tests.json").list;
}

const NcclBaseline* nccl_baseline_of(const std::string& fabric, const std::vector<NcclBaseline>& networks) {
  const auto at = std::find_if(networks.begin(), networks.end(),
                               [&](const NcclBaseline& n) { return n.preset == fabric; });
  return at == networks.end() ? nullptr : &*at;
}

void use_network(const NcclBaseline& n, FabricSpec& f) {
  f.efficiency = n.efficiency;
  f.latency = n.latency;
  f.in_network = n.in_network;
  f.reduces_inside = f.reduces_inside || n.reduces_inside;
}

ClusterSpec tested_cluster(const TestedHardware& on, const std::string& fabric,
                           const std::filesystem::path& preset_dir) {
  return tested_cluster(on, load_cluster(on.device, preset_dir), fabric, preset_dir);
}

ClusterSpec nccl_baseline_cluster(const TestedHardware& on, const std::vector<NcclBaseline>& networks,
                                  const std::filesystem::path& preset_dir,
                                  std::span<const Setting> settings) {
  ClusterSpec usual = load_cluster(on.device, preset_dir);
  if (!crosses(on, usual)) return tested_cluster(on, std::move(usual), "", preset_dir);
  const auto at = std::find_if(networks.begin(), networks.end(), [&](const NcclBaseline& n) {
    return on.fabric.find(n.fabric) != std::string::npos;
  });
  if (at == networks.end()) {
    std::vector<std::string> known;
    for (const NcclBaseline& n : networks) known.push_back(n.fabric);
    throw ConfigError(
        Problem{"", "fabric", on.fabric, fmt::format("a text with one of {}", fmt::join(known, ", ")), ""});
  }
  ClusterSpec c = tested_cluster(on, std::move(usual), at->preset, preset_dir);
  const FabricSpec preset = c.fabric;
  FabricSpec calibrated = preset;
  use_settings(settings, calibrated);
  use_network(*at, c.fabric);
  c.fabric.efficiency = std::min(1.0, c.fabric.efficiency * calibrated.efficiency / preset.efficiency);
  if (preset.latency.v > 0) c.fabric.latency = c.fabric.latency * (calibrated.latency / preset.latency);
  if (on.node_network.v > 0) {
    c.fabric.bandwidth = on.node_network;
    c.node.nic_bandwidth = on.node_network / c.node.nics;
  }
  return c;
}

}  // namespace sextant
