// The cluster on which nccl-tests ran, from what a table says about it: nodes of a device preset, and the network as tables
// found it with nothing else on it (tools/presets/nccl_tests.json). Networks of fabric presets are those of whole runs, on
// which other traffic and many nodes weigh.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "planner/simulation/setting.hpp"

namespace sextant {

struct NcclBaseline {
  std::string fabric;  // text that the fabric in words contains
  std::string preset;  // fabric preset that it is otherwise
  double efficiency = 0;
  Seconds latency;
  bool in_network = false, reduces_inside = false;
  std::string source, date;
};
std::vector<NcclBaseline> load_nccl_baselines(const std::filesystem::path& preset_dir);
// The first of this fabric preset; null where no table of it was published.
const NcclBaseline* nccl_baseline_of(const std::string& fabric, const std::vector<NcclBaseline>&);
void use_network(const NcclBaseline&, FabricSpec&);

struct TestedHardware {
  std::string device, fabric;  // as a table writes them
  int ranks = 1, gpus_per_node = 8;
  BytesPerSecond node_network;  // of one node, per direction, nominal; 0 = as the preset
  int nodes = 1;                // that the ranks are spread over, where the table says so
};

// The same nodes over the fabric preset, where they are more than one domain; empty: as such nodes usually have it.
ClusterSpec tested_cluster(const TestedHardware&, const std::string& fabric,
                           const std::filesystem::path& preset_dir);

// Throws ConfigError naming the device, or the fabric of several nodes, that nobody knows. What `settings` change on the
// fabric of steps changes the idle one by the same factor.
ClusterSpec nccl_baseline_cluster(const TestedHardware&, const std::vector<NcclBaseline>&,
                                  const std::filesystem::path& preset_dir,
                                  std::span<const Setting> settings = {});

}  // namespace sextant
