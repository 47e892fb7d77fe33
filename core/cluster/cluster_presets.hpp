// A cluster whose device and fabric are names of presets, made whole, and what is wrong in one told with its file.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// A file's object; of values with origin, source and date the values alone. Throws ConfigError where it is something else.
nlohmann::json read_plain_object(const std::filesystem::path&);

// The preset's content without what is for people only; nothing when there is no such preset.
std::optional<nlohmann::json> find_content(const std::filesystem::path& presets, std::string_view kind,
                                           const std::string& name);

struct ClusterPreset {
  nlohmann::json content;
  std::string file;
};
// Of kind "devices" or "fabrics"; `key` is where the name stands. Throws ConfigError where there is none.
ClusterPreset get_preset(const std::filesystem::path& presets, std::string_view kind, const std::string& name,
                         const std::string& key);

struct WholeCluster {
  nlohmann::json cluster = nlohmann::json::object(), presets;  // `presets`: without what the cluster changes
  std::map<std::string, std::string> file;                     // of the preset that a part is from, by part
};
WholeCluster resolve(nlohmann::json cluster, const std::filesystem::path& presets);

// Throws ConfigError; what is wrong in a preset, whatever the cluster changes, names its file.
ClusterSpec read_whole(const WholeCluster&);

bool has_field(const nlohmann::json&, const char* part, const char* key);

// Rings are of a whole node: one with another number of GPUs is another mesh.
void drop_rings_of_other_nodes(nlohmann::json& cluster);

}  // namespace sextant
