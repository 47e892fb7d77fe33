#include "core/cluster/cluster_files.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/annotated.hpp"
#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "core/base/words.hpp"
#include "core/cluster/cluster_limits.hpp"
#include "core/cluster/cluster_presets.hpp"
#include "core/cluster/device_words.hpp"

namespace sextant {

namespace {
using nlohmann::json;
namespace fs = std::filesystem;

ClusterSpec read_cluster(const json& cluster, const fs::path& presets) {
  return read_whole(resolve(cluster, presets));
}

// "8x8xh100" -> {8, 8}, "h100". At most two counts.
struct ShortForm {
  std::vector<int> counts;
  std::string device;
};

ShortForm parse_short_form(const std::string& text) {
  ShortForm out;
  std::vector<std::string> found;
  std::size_t at = 0;
  while (out.counts.size() < 2) {
    std::size_t end = at;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    const bool last = end == text.size();
    if (end == at || (!last && text[end] != 'x' && text[end] != 'X')) break;
    const std::string digits = text.substr(at, end - at);
    out.counts.push_back(digits.size() > 7 ? 10'000'000 : std::stoi(digits));
    found.push_back(digits);
    at = last ? end : end + 1;
    if (last) break;
  }
  const bool total = out.counts.size() == 1;
  for (std::size_t i = 0; i < out.counts.size(); ++i) {
    const int most = total ? kMaxGpus : i == 0 ? kMaxNodes : kMaxGpusPerNode;
    if (out.counts[i] < 1 || out.counts[i] > most)
      throw ConfigError(Problem{"", text, found[i],
                                fmt::format("{} from 1 to {}",
                                            total    ? "a number of GPUs"
                                            : i == 0 ? "a number of nodes"
                                                     : "GPUs of a node",
                                            most),
                                "nodes x GPUs x device"});
  }
  out.device = text.substr(at);
  return out;
}

// "h200" of "H200-SXM": the product, and what else a name says, in small letters.
std::vector<std::string> parts_of_name(const std::string& device) {
  std::vector<std::string> words(1);
  for (const char c : lower(device))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      words.back() += c;
    else if (!words.back().empty())
      words.emplace_back();
  if (words.size() > 1 && words.back().empty()) words.pop_back();
  return words;
}

// The preset of the product that a name begins with, in the form and with the memory that its other words say: "h200-sxm" is h200,
// "h100-80gb-pcie" is h100-pcie. Empty: there is none, or the name says more.
std::string namesake(const std::string& device, const fs::path& presets) {
  const std::vector<std::string> words = parts_of_name(device);
  std::string name = words[0], memory;
  if (!find_preset(presets, "devices", name)) return "";
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 && memory.empty())
      memory = word.ends_with("g") ? word + "b" : word;
    else if (const std::string form = fmt::format("{}-{}", name, word); find_preset(presets, "devices", form))
      name = form;
    else if (!word.starts_with("sxm") && word != "hbm3")
      return "";
  }
  if (memory.empty()) return name;
  if (std::string sized = fmt::format("{}-{}", name, memory); find_preset(presets, "devices", sized))
    return sized;
  return lower(find_preset(presets, "devices", name)->stem().string()).ends_with("-" + memory) ? name : "";
}

// A product without a preset: by which one to describe it, and how.
std::string how_to_describe(const std::string& device, const std::string& counts, const fs::path& presets) {
  if (const std::string_view gpus = gpus_of_machine(device); !gpus.empty())
    return fmt::format(
        "{} is a machine of {} GPUs: --cluster NODESx{}, with its network behind @ (sextant presets fabrics)",
        device, gpus, gpus);
  NearestDevice near = nearest_device(device);
  const std::string product = parts_of_name(device)[0];
  if (near.of_generation && find_preset(presets, "devices", product)) {
    near.preset = product;
    near.pcie = false;
  }
  const std::string by =
      near.of_generation ? fmt::format("Describe it by one of its generation, {}", near.generation)
      : near.generation.empty()
          ? "Describe it by the nearest one"
          : fmt::format(
                "None is of {}, so that times are a guess from another; describe it by the nearest one",
                near.generation == "another maker" ? "its maker"
                                                   : fmt::format("its generation, {}", near.generation));
  return fmt::format(
      "{} is not among the devices (sextant presets devices). {}: --cluster {}{} with its own figures "
      "(--set device.memory_GiB=... --set device.memory_bandwidth_GBps=... --set "
      "device.peak_TFLOPS.bf16=...{}), or by a "
      "changed copy of its file (sextant presets show {} names it)",
      device, by, counts, near.preset,
      near.pcie ? "; it has no NVLink: --set node.link=pcie --set node.link_bandwidth_GBps=..." : "",
      near.preset);
}

// "8h100" and "2x8-h100": the count with the x that it lacks, where what follows is a device; otherwise as it was.
std::string with_x_behind_count(const std::string& text, const fs::path& presets) {
  const std::size_t last = text.find_last_of("xX"), from = last == text.npos ? 0 : last + 1;
  for (const std::size_t begin : {from, std::size_t{0}}) {  // a device's own name may have an x
    const std::size_t end = text.find_first_not_of("0123456789", begin);
    if (end == text.npos || end == begin) continue;
    const std::size_t name = text.find_first_not_of("-_", end);
    if (name != text.npos && find_preset(presets, "devices", text.substr(name)))
      return fmt::format("{}x{}", text.substr(0, end), text.substr(name));
  }
  return text;
}

// "8xh100" as nodes and GPUs of each: 1x8xh100. Of a number that fills no whole nodes as it is.
std::string with_nodes(const ShortForm& form, const fs::path& presets) {
  const auto content = find_content(presets, "devices", form.device);
  const int usual = content ? content->value("node", json::object()).value("gpus", 8) : 8, n = form.counts[0];
  if (n > usual && n % usual != 0) return fmt::format("{}x{}", n, form.device);
  return fmt::format("{}x{}x{}", std::max(1, n / usual), std::min(n, usual), form.device);
}

// "8h100", "h100x8", "h100:8" and "8*8*h100" as they should have been typed; empty where that is nothing known either.
std::string other_spelling(const std::string& what, const fs::path& presets) {
  std::string text;
  for (std::size_t at = 0; at < what.size(); ++at) {
    if (what[at] == '*' || what[at] == ':') {
      text += 'x';
    } else if (what.compare(at, 2, "\u00d7") == 0) {
      text += 'x';
      ++at;
    } else if (what[at] != ' ') {
      text += what[at];
    }
  }
  const std::size_t last = text.find_last_of("xX");
  if (last != text.npos && last > 0 && last + 1 < text.size() &&
      text.find_first_not_of("0123456789", last + 1) == text.npos)
    text = fmt::format("{}x{}", text.substr(last + 1), text.substr(0, last));
  text = with_x_behind_count(text, presets);
  if (text == what) return "";
  const ShortForm form = parse_short_form(text);
  if (form.counts.empty() || !find_preset(presets, "devices", form.device)) return "";
  return form.counts.size() == 1 ? with_nodes(form, presets) : text;
}

// Whether a cluster preset has the name of one machine, a cloud's or NVIDIA's: "p5" is "p5.48xlarge" as well.
bool names_a_machine(const std::string& name, const fs::path& presets) {
  std::vector<std::string> names = {name};
  const json preset = read_plain_object(find_preset(presets, "clusters", name)->string());
  if (const auto others = preset.find("aliases"); others != preset.end())
    names.insert(names.end(), others->begin(), others->end());
  return std::any_of(names.begin(), names.end(), [](const std::string& one) {
    return lower(one).ends_with("xlarge") || lower(one).starts_with("dgx-");
  });
}

ClusterSpec from_short_form(const std::string& what, const ShortForm& form, const std::string& fabric,
                            const fs::path& presets) {
  json cluster = json::object();
  bool machines = false;  // are counted, not GPUs
  if (find_preset(presets, "devices", form.device)) {
    cluster["device"] = form.device;
  } else if (auto found = find_content(presets, "clusters", form.device)) {
    cluster = *found;
    machines = names_a_machine(form.device, presets);
  } else {
    const std::string other = other_spelling(what, presets);
    const std::string near = nearest_preset(presets, {"clusters", "devices"}, form.device);
    const std::string prefix = what.substr(0, what.size() - form.device.size());
    const std::string same = namesake(form.device, presets);
    const bool slip = !near.empty() && gpus_of_machine(form.device).empty() &&
                      (same_product(form.device, near) || find_preset(presets, "clusters", near));
    throw ConfigError(
        Problem{"", "", fmt::format("\"{}\"", what),
                "a cluster preset, nodes x GPUs x device (8x8xh100), or a JSON file",
                !other.empty() ? fmt::format("did you mean {}{}{}?", other, fabric.empty() ? "" : "@", fabric)
                : !same.empty() ? fmt::format("did you mean {}{}?", prefix, same)
                : slip          ? fmt::format("did you mean {}{}?", prefix, near)
                                : how_to_describe(form.device, prefix, presets)});
  }
  if (!fabric.empty()) cluster["fabric"] = fabric;
  WholeCluster resolved = resolve(cluster, presets);
  json& whole = resolved.cluster;
  json& node = whole["node"];
  const int usual = node.value("gpus", 8);
  int nodes = whole.value("nodes", 1), gpus = usual;
  if (form.counts.size() == 2) {
    nodes = form.counts[0];
    gpus = form.counts[1];
  }
  if (form.counts.size() == 1) {
    const int total = machines ? form.counts[0] * usual : form.counts[0];
    nodes = std::max(1, total / usual);
    gpus = std::min(total, usual);
    if (nodes * gpus != total)
      throw ConfigError(Problem{
          "", "", what, fmt::format("full nodes of {} GPUs", usual),
          fmt::format("use {}x{} or {}x{}", nodes * usual, form.device, (nodes + 1) * usual, form.device)});
  }
  whole["nodes"] = nodes;
  whole["name"] = fabric.empty() ? what : fmt::format("{}@{}", what, fabric);
  node["gpus"] = gpus;
  drop_rings_of_other_nodes(whole);
  // A node with fewer or more GPUs than usual has its NICs in proportion, unless the fabric was named.
  if (const int nics = node.value("nics", 0); fabric.empty() && gpus != usual && nics > 0)
    node["nics"] = std::max(1, static_cast<int>(static_cast<long>(nics) * gpus / usual));
  return read_whole(resolved);
}

}  // namespace

ClusterSpec load_cluster(const std::string& what, const fs::path& presets) {
  std::error_code error;
  ClusterSpec spec;
  if (lower(what).ends_with(".json") || what.find('/') != what.npos || fs::is_regular_file(what, error)) {
    const json cluster = read_plain_object(what);
    with_file(what, [&] { spec = read_cluster(cluster, presets); });
    if (spec.name.empty()) spec.name = fs::path(what).stem().string();
    return spec;
  }
  const auto at = what.find('@');
  const std::string name = what.substr(0, at), fabric = at == what.npos ? "" : what.substr(at + 1);
  with_file("--cluster", [&] {
    if (at != what.npos && fabric.empty())
      throw ConfigError(Problem{"", "", fmt::format("\"{}\"", what), "a fabric preset after @", ""});
    if (const auto preset = find_content(presets, "clusters", name)) {
      json cluster = *preset;
      if (!fabric.empty()) cluster["fabric"] = fabric;
      if (!cluster.contains("name")) cluster["name"] = name;
      spec = read_cluster(cluster, presets);
      return;
    }
    const ShortForm form = parse_short_form(name);
    if (form.device.empty())
      throw ConfigError(Problem{"", "", fmt::format("\"{}\"", what),
                                "nodes x GPUs x device, such as 8x8xh100", "the device is missing"});
    spec = from_short_form(name, form, fabric, presets);
  });
  return spec;
}

DeviceSpec load_device(const std::string& name, const fs::path& presets) {
  DeviceSpec device;
  from_json(get_preset(presets, "devices", name, "device").content.at("device"), device);
  return device;
}

void apply_overrides(ClusterSpec& spec, const std::vector<std::string>& settings) {
  if (settings.empty()) return;
  ClusterSpec changed;
  with_file("--set", [&] {
    json j = spec;
    json touched = json::object();  // which of the two keys of the network's rate were named
    std::vector<Problem> problems;
    for (const auto& setting : settings) {
      const auto equals = setting.find('=');
      if (equals == setting.npos || equals == 0) {
        problems.push_back(
            {"", "", fmt::format("\"{}\"", setting), "KEY=VALUE, such as fabric.bandwidth_GBps=100", ""});
        continue;
      }
      const std::string key = setting.substr(0, equals);
      try {
        set_json_path(j, key, setting.substr(equals + 1));
      } catch (const ConfigError& e) {
        problems.insert(problems.end(), e.problems().begin(), e.problems().end());
        continue;
      }
      const auto dot = key.find('.');
      if (dot != key.npos) touched[key.substr(0, dot)][key.substr(dot + 1)] = true;
    }
    if (!problems.empty()) throw ConfigError(std::move(problems));
    const bool by_nic =
        has_field(touched, "node", "nic_bandwidth_GBps") || has_field(touched, "node", "nics");
    if (has_field(touched, "fabric", "bandwidth_GBps")) {
      if (!has_field(touched, "node", "nic_bandwidth_GBps") && j["node"].is_object())
        j["node"].erase("nic_bandwidth_GBps");
    } else if (by_nic && j["fabric"].is_object()) {
      j["fabric"].erase("bandwidth_GBps");
    }
    if (!has_field(touched, "node", "link_rings")) drop_rings_of_other_nodes(j);
    from_json(j, changed);
  });
  spec = std::move(changed);
}

}  // namespace sextant
