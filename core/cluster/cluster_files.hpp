// A cluster from what the user writes: a preset name, a short form, or a JSON file. Presets lie in
// `presets`/devices, /fabrics and /clusters; a cluster file may name a device and a fabric preset and
// override any field of them.
//
//   a100-80gb-64        a cluster preset              p5              the same, its own number of nodes
//   8x8xh100            nodes x GPUs x device         16x8xp4d        nodes of a cluster preset
//   64xa100-80gb        GPUs, in full nodes           h100            one node
//   8x8xh100@roce-8x200 with another fabric           my_cluster.json
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// Throws ConfigError when nothing of that name exists (with a suggestion), or what it says is not a lawful
// cluster.
ClusterSpec load_cluster(const std::string& what, const std::filesystem::path& presets);

// A device preset by its name or one of its short names ("a100-80gb").
DeviceSpec load_device(const std::string& name, const std::filesystem::path& presets);

// Settings such as "fabric.bandwidth_GBps=100", "node.gpus=4" or "defects=[{\"node\":3,\"missing\":true}]":
// any field by its JSON path. All are applied, then the whole is validated. Throws ConfigError naming the
// setting.
void apply_overrides(ClusterSpec&, const std::vector<std::string>& settings);

}  // namespace sextant
