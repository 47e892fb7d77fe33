#include "core/cluster/cluster_presets.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"

namespace sextant {

using nlohmann::json;
namespace fs = std::filesystem;

json read_plain_object(const fs::path& path) {
  json j = read_plain_values(path);
  if (!j.is_object()) throw ConfigError(Problem{path.string(), "", "", "an object { ... }", ""});
  return j;
}

namespace {
json content_of(const fs::path& path) {
  json j = read_plain_object(path);
  for (const char* about : {"title", "about", "aliases"}) j.erase(about);
  return j;
}
}  // namespace

std::optional<json> find_content(const fs::path& presets, std::string_view kind, const std::string& name) {
  const auto path = find_preset(presets, kind, name);
  return path ? std::optional(content_of(*path)) : std::nullopt;
}

ClusterPreset get_preset(const fs::path& presets, std::string_view kind, const std::string& name,
                         const std::string& key) {
  if (const auto path = find_preset(presets, kind, name)) return {content_of(*path), path->string()};
  const std::string near = nearest_preset(presets, {kind}, name);
  throw ConfigError(Problem{
      "", key, fmt::format("\"{}\"", name), fmt::format("a {} preset", kind.substr(0, kind.size() - 1)),
      near.empty() ? fmt::format("there are {}", fmt::join(preset_names(presets, kind), ", "))
                   : fmt::format("did you mean {}?", near)});
}

bool has_field(const json& j, const char* part, const char* key) {
  return j.contains(part) && j[part].is_object() && j[part].contains(key);
}

void drop_rings_of_other_nodes(json& cluster) {
  if (!has_field(cluster, "node", "link_rings") || !has_field(cluster, "node", "gpus")) return;
  json& node = cluster["node"];
  const json &rings = value_of(node["link_rings"]), &gpus = value_of(node["gpus"]);
  if (rings.is_array() && gpus.is_number_integer() && gpus.get<std::int64_t>() != std::ssize(rings))
    node.erase("link_rings");
}

namespace {

// Puts `over` on top of `base`. The network's rate is one number under two keys: what is set last counts.
void overlay(json& base, const json& over) {
  if (has_field(over, "fabric", "bandwidth_GBps") && !has_field(over, "node", "nic_bandwidth_GBps") &&
      base.contains("node"))
    base["node"].erase("nic_bandwidth_GBps");
  if ((has_field(over, "node", "nic_bandwidth_GBps") || has_field(over, "node", "nics")) &&
      !has_field(over, "fabric", "bandwidth_GBps") && has_field(base, "node", "nic_bandwidth_GBps") &&
      base.contains("fabric"))
    base["fabric"].erase("bandwidth_GBps");
  base.merge_patch(over);
  if (!has_field(over, "node", "link_rings")) drop_rings_of_other_nodes(base);
}

// The preset that a part names, as "device": "h100" or "device": {"preset": "h100", ...}.
std::optional<std::string> preset_of(const json& j, const char* part) {
  const auto at = j.find(part);
  if (at == j.end()) return std::nullopt;
  if (at->is_string()) return at->get<std::string>();
  if (!at->is_object() || !at->contains("preset")) return std::nullopt;
  if (!(*at)["preset"].is_string())
    throw ConfigError(Problem{"", fmt::format("{}.preset", part), (*at)["preset"].dump().substr(0, 60),
                              "a name in quotes", ""});
  return (*at)["preset"].get<std::string>();
}

// A file's name and the name within are one: answers show the one, people type the other.
void check_name(const json& device, const std::string& file) {
  const std::string expected = fs::path(file).stem().string();
  const json* name = device.is_object() && device.contains("name") ? &device["name"] : nullptr;
  if (name && name->is_string() && *name != expected)
    throw ConfigError(Problem{file, "device.name", name->dump(),
                              fmt::format("\"{}\", as the file is called", expected), ""});
}

}  // namespace

WholeCluster resolve(json cluster, const fs::path& presets) {
  WholeCluster out;
  json& whole = out.cluster;
  std::optional<std::string> fabric;
  std::string named_in;  // the file that names the fabric; empty: the cluster
  if (const auto device = preset_of(cluster, "device")) {
    const ClusterPreset preset = get_preset(presets, "devices", *device, "device");
    for (const char* part : {"device", "node"})
      if (preset.content.contains(part)) {
        whole[part] = preset.content[part];
        out.file[part] = preset.file;
      }
    if (whole.contains("device")) check_name(whole["device"], preset.file);
    fabric = preset_of(preset.content, "fabric");
    named_in = preset.file;
    if (!fabric && !cluster.contains("fabric"))
      throw ConfigError(Problem{named_in, "fabric", "nothing",
                                "the fabric preset that is usual beside this device",
                                "sextant presets fabrics lists them"});
  }
  if (const auto named = preset_of(cluster, "fabric")) {
    fabric = named;
    named_in.clear();
  }
  if (fabric)
    with_file(named_in, [&] {
      const ClusterPreset preset = get_preset(presets, "fabrics", *fabric, "fabric");
      overlay(whole, preset.content);
      out.file["fabric"] = preset.file;
    });
  for (const char* part : {"device", "fabric"}) {
    if (!cluster.contains(part)) continue;
    if (cluster[part].is_string())
      cluster.erase(part);
    else if (cluster[part].is_object())
      cluster[part].erase("preset");
  }
  for (const char* about : {"title", "about", "aliases"}) cluster.erase(about);
  out.presets = whole;
  overlay(whole, cluster);
  return out;
}

ClusterSpec read_whole(const WholeCluster& whole) {
  ClusterSpec spec;
  try {
    from_json(whole.cluster, spec);
  } catch (const ConfigError& e) {
    std::vector<Problem> problems = e.problems(), own;
    try {
      json alone = whole.presets;
      alone["nodes"] = 1;
      ClusterSpec ignored;
      from_json(alone, ignored);
    } catch (const ConfigError& of_presets) {
      own = of_presets.problems();
    }
    for (Problem& p : problems) {
      const auto from = whole.file.find(p.key.substr(0, p.key.find('.')));
      const bool theirs =
          std::ranges::any_of(own, [&](const Problem& o) { return o.key == p.key && o.value == p.value; });
      if (p.file.empty() && theirs && from != whole.file.end()) p.file = from->second;
    }
    throw ConfigError(std::move(problems));
  }
  return spec;
}

}  // namespace sextant
