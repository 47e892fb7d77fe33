// Which cluster did a published run use? Devices by name, the network by its words and its stated rate.
#pragma once

#include <filesystem>
#include <string>

#include "core/runs/framework_map.hpp"

namespace sextant {

struct ClusterOfRow {
  ClusterSpec spec;
  std::string note = {};
  bool guessed = false;  // the row does not say the network's rate, in words that are known or as a number
};

// Throws ConfigError when the row's device or the rule's preset does not exist.
ClusterOfRow cluster_of(const RunRow&, const FrameworkMap&, const std::filesystem::path& preset_dir);

}  // namespace sextant
