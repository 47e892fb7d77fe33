// Clusters by name, short form and file; overrides; and every preset of the repository.
#include "core/cluster/cluster_files.hpp"

#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/base/preset_path.hpp"
#include "tests/core/cluster/cluster_support.hpp"
#include "tests/support/temp_dir.hpp"

using namespace sextant;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path kPresets = fs::path(SEXTANT_SOURCE_DIR) / "tools/presets";

ClusterSpec load(const std::string& what) { return load_cluster(what, kPresets); }

template <class F>
std::string complaint(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}
std::string refused(const std::string& what) {
  return complaint([&] { load(what); });
}

void expect_tells(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "in: \"" << text << "\", looking for " << part;
}

std::vector<std::string> names(const char* kind) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(kPresets / kind))
    out.push_back(entry.path().stem().string());
  return out;
}

// Numbers of a preset that do not say where they come from. How many parts a node has needs no source.
std::vector<std::string> without_source(const nlohmann::json& j, const std::string& path) {
  static const std::regex kMonth("20[0-9]{2}-(0[1-9]|1[0-2])");
  static const std::set<std::string> kParts = {"gpus", "nics", "domain_nodes", "leaf_nodes"};
  std::vector<std::string> missing;
  if (j.is_object() && j.contains("value")) {
    const auto text = [&](const char* key) { return j.value(key, std::string()); };
    const auto lacks = [&](const char* key, const char* expected) {
      missing.push_back(path + ": " + key + " is \"" + text(key) + "\", expected " + expected);
    };
    if (text("origin").size() != 1 || std::string("TFSDG").find(text("origin")) == std::string::npos)
      lacks("origin", "one of T, F, S, D, G");
    if (text("source").empty()) lacks("source", "where the value is from");
    if (!std::regex_match(text("date"), kMonth)) lacks("date", "a month, 2026-11");
  } else if (j.is_object()) {
    for (const auto& [key, part] : j.items()) {
      if (part.is_number() && kParts.count(key)) continue;
      const auto below = without_source(part, path + "." + key);
      missing.insert(missing.end(), below.begin(), below.end());
    }
  } else if (j.is_number()) {
    missing.push_back(path + ": a number without origin, source and date");
  }
  return missing;
}

}  // namespace

TEST(ClusterFiles, EveryNumberHasOriginSourceAndDate) {
  for (const char* kind : {"devices", "fabrics"})
    for (const auto& name : names(kind)) {
      if (name == "none") continue;  // no network: nothing to measure
      const auto preset = read_json_file(kPresets / kind / (name + ".json"));
      EXPECT_EQ(without_source(preset, name), std::vector<std::string>{});
    }
  auto preset = read_json_file(kPresets / "devices/H100-SXM5-80GB.json");  // negative control
  preset["device"]["memory_GiB"].erase("date");
  preset["device"]["power_W"] = 700;
  EXPECT_EQ(without_source(preset, "h").size(), 2U);
}

// Dense 16-bit TFLOP/s, by which the published runs count their MFU; of a device nobody measured those of its data sheet.
TEST(ClusterFiles, SixteenBitPeaksAreTheKnownOnes) {
  const std::map<std::string, double> peaks = {
      {"A100-SXM4-40GB", 312},     {"A100-SXM4-64GB", 358},   {"A100-SXM4-80GB", 312},
      {"A100-PCIe-40GB", 312},     {"A100-PCIe-80GB", 312},   {"A800-SXM4-80GB", 312},
      {"H100-SXM5-64GB", 989},     {"H100-SXM5-80GB", 989},   {"H100-SXM5-96GB-HBM2e", 989},
      {"H100-PCIe-80GB", 756},     {"H200-SXM5-141GB", 989},  {"H800-SXM5-80GB", 989},
      {"V100-SXM2-16GB", 125},     {"V100-SXM2-32GB", 125},   {"V100-SXM3-32GB", 125},
      {"B200-SXM6-180GB", 2250},   {"B300-SXM6-270GB", 2250}, {"GB200-NVL72-186GB", 2500},
      {"GB300-NVL72-279GB", 2500}, {"A800-SXM4-40GB", 312},   {"A800-PCIe-40GB", 312},
      {"A800-PCIe-80GB", 312},     {"H100-NVL-94GB", 835.5},  {"H200-NVL-141GB", 835.5},
      {"H800-PCIe-80GB", 756},     {"H20-SXM5-96GB", 148}};
  for (const auto& [name, peak] : peaks) {
    const DeviceSpec d = load_device(name, kPresets);
    EXPECT_EQ(d.name, name);
    const Dtype half = d.generation == "volta" ? Dtype::fp16 : Dtype::bf16;
    EXPECT_NEAR(d.peak.at(half).v / 1e12, peak, 0.5) << name;
  }
  for (const auto& name : names("devices")) {
    EXPECT_TRUE(peaks.contains(name) || name == "cpu") << name << " needs a row in this table";
  }
}

// Marketing gigabytes are in the name: what the driver leaves is less, in GiB, by at most a tenth.
TEST(ClusterFiles, DevicePresetsAreSane) {
  for (const auto& name : names("devices")) {
    const ClusterSpec c = load("2x2x" + name + "@roce-4x200");
    EXPECT_TRUE(validate(c).empty()) << name;
    if (name == "cpu") continue;
    const auto end = name.find("GB", name.find_last_of('-', name.find("GB") - 1));
    const double named = std::stod(name.substr(name.find_last_of('-', end) + 1));
    EXPECT_LE(gib(c.device.memory), named) << name;
    EXPECT_GE(gib(c.device.memory), 0.9 * named) << name;
    // A unit that is a thousand times too large or too small lies outside of all that has been built.
    const auto within = [&](const char* what, double value, double low, double high) {
      EXPECT_TRUE(low <= value && value <= high)
          << name << ": " << what << " is " << value << ", expected " << low << " to " << high;
    };
    within("memory_bandwidth_GBps", c.device.memory_bandwidth.v / 1e9, 500, 20'000);
    within("power_W", c.device.power_W, 100, 2'000);
    within("peak_TFLOPS.fp16", c.device.peak.at(Dtype::fp16).v / 1e12, 50, 5'000);
    within("link_bandwidth_GBps", c.node.link_bandwidth.v / 1e9, 15, 1'000);
    within("link_latency_us", c.node.link_latency.v * 1e6, 0.3, 20);
    within("host_memory_GiB", gib(c.node.host_memory), 100, 20'000);
    const auto& peak = c.device.peak;
    const auto has = [&](Dtype format) { return peak.contains(format); };
    ASSERT_TRUE(has(Dtype::fp16) && has(Dtype::fp32)) << name << ": peak_TFLOPS states fp16 and fp32";
    EXPECT_GE(peak.at(Dtype::fp16) / peak.at(Dtype::fp32), 3) << name << ": fp32 is at most a third of fp16";
    if (!has(Dtype::fp8) && !has(Dtype::tf32)) continue;
    ASSERT_TRUE(has(Dtype::bf16)) << name << ": peak_TFLOPS states bf16 beside fp8 or tf32";
    if (has(Dtype::fp8)) {
      EXPECT_NEAR(peak.at(Dtype::fp8) / peak.at(Dtype::bf16), 2, 0.01) << name << ": fp8 is twice bf16";
    }
    if (has(Dtype::tf32)) {
      EXPECT_NEAR(peak.at(Dtype::tf32) / peak.at(Dtype::bf16), 0.5, 0.01) << name << ": tf32 is half of bf16";
    }
  }
}

TEST(ClusterFiles, EveryNumberOfADeviceHasSourceAndDate) {
  for (const char* kind : {"devices", "fabrics"})
    for (const auto& name : names(kind)) {
      const json j = read_json_file(kPresets / kind / (name + ".json"));
      const std::set<std::string> counts = {"gpus", "nics", "domain_nodes", "leaf_nodes"};
      const std::function<void(const json&, const std::string&)> walk = [&](const json& at,
                                                                            const std::string& key) {
        if (at.is_object() && at.contains("value")) {
          EXPECT_TRUE(at.contains("source") && at.contains("date")) << name << ' ' << key;
          return;
        }
        EXPECT_FALSE(at.is_number() && !counts.contains(key) && name != "none") << name << ' ' << key;
        if (at.is_object())
          for (const auto& item : at.items()) walk(item.value(), item.key());
      };
      walk(j, "");
    }
}

TEST(ClusterFiles, EveryFabricAndClusterPresetLoads) {
  for (const auto& name : names("fabrics")) EXPECT_EQ(load("1x8xh100@" + name).fabric.name, name);
  for (const auto& name : names("clusters")) {
    const ClusterSpec c = load(name);
    EXPECT_EQ(c.name, name);
    EXPECT_TRUE(validate(c).empty()) << name;
    ClusterSpec back;
    from_json(json::parse(json(c).dump()), back);
    EXPECT_EQ(back, c) << name;
  }
}

// Short names are unique over all devices, or the answer would depend on the order of files.
TEST(ClusterFiles, ShortNamesAreUnique) {
  for (const char* kind : {"devices", "clusters"})
    for (const auto& name : names(kind)) {
      const json j = read_json_file(kPresets / kind / (name + ".json"));
      for (const json& alias : j.value("aliases", json::array())) {
        const auto found = find_preset(kPresets, kind, alias.get<std::string>());
        ASSERT_TRUE(found);
        EXPECT_EQ(found->stem().string(), name) << alias << " is a name of " << *found << " too";
      }
    }
}

TEST(ClusterFiles, FabricRatesAreTheKnownOnes) {
  const std::map<std::string, double> rates = {{"roce-4x200", 100}, {"roce-8x200", 200}, {"hdr-8x200", 200},
                                               {"ndr-8x400", 400},  {"opa-4x100", 50},   {"efa-p4d", 50},
                                               {"efa-p5", 400},     {"hdr100-4", 50}};
  for (const auto& [name, rate] : rates)
    EXPECT_DOUBLE_EQ(load("2x8xh100@" + name).fabric.bandwidth.v, rate * 1e9) << name;
}

TEST(ClusterFiles, ShortForms) {
  ClusterSpec c = load("8x8xh100");
  EXPECT_EQ(c.nodes, 8);
  EXPECT_EQ(c.node.gpus, 8);
  EXPECT_EQ(c.device.name, "H100-SXM5-80GB");
  EXPECT_EQ(c.fabric.name, "ndr-8x400");
  EXPECT_EQ(c.name, "8x8xh100");
  EXPECT_EQ(load("64xa100-80gb").nodes, 8);
  EXPECT_EQ(load("4xA100").node.gpus, 4);
  EXPECT_EQ(load("4xA100").nodes, 1);
  EXPECT_EQ(load("h200").nodes, 1);
  EXPECT_EQ(load("16x8xp4d").fabric.name, "efa-p4d");
  EXPECT_EQ(load("36x4xgb200").node.domain_nodes, 18);
  c = load("2x4xa100");  // half a node has half its NICs
  EXPECT_EQ(c.node.nics, 4);
  EXPECT_DOUBLE_EQ(c.fabric.bandwidth.v, 100e9);
  c = load("2x4xa100@roce-8x200");  // unless the fabric is named
  EXPECT_EQ(c.node.nics, 8);
  EXPECT_EQ(c.fabric.name, "roce-8x200");
  EXPECT_EQ(load("a100-80gb-64@opa-4x100").fabric.name, "opa-4x100");
  EXPECT_EQ(load("p5").device.price_usd_per_hour, 12.29);
}

TEST(ClusterFiles, BadNamesAreExplained) {
  expect_tells(refused("8x8xh10"), "did you mean 8x8xh100?");
  expect_tells(refused("a100-80gb-46"), "did you mean a100-80gb-64?");
  expect_tells(refused("0x8xh100"), "a number of nodes from 1 to");
  expect_tells(refused("8x0xh100"), "GPUs of a node from 1 to");
  expect_tells(refused("-8x8xh100"), "nodes x GPUs x device");
  expect_tells(refused("8x8"), "the device is missing");
  expect_tells(refused("8x8x"), "the device is missing");
  expect_tells(refused(""), "the device is missing");
  expect_tells(refused("99999999999999999999x8xh100"), "a number of nodes from 1 to");
  expect_tells(refused("131072x1024xh100"), "at most");
  expect_tells(refused("60xh100"), "use 56xh100 or 64xh100");
  expect_tells(refused("8x8xh100@ndr-8x40"), "did you mean ndr-8x400?");
  expect_tells(refused("8x8xh100@"), "a fabric preset after @");
  expect_tells(refused("nosuch.json"), "nosuch.json");
  expect_tells(refused("8x8xh10"), "--cluster");
  // Other orders and signs.
  expect_tells(refused("h100x8"), "did you mean 1x8xh100?");
  for (const char* eight : {"8h100", "8*h100", "8-h100", "h100*8", "h100:8", "8 h100"})
    expect_tells(refused(eight), "did you mean 1x8xh100?");
  expect_tells(refused("4h100"), "did you mean 1x4xh100?");
  expect_tells(refused("16h100"), "did you mean 2x8xh100?");
  expect_tells(refused("2x8h100"), "did you mean 2x8xh100?");
  expect_tells(refused("2x8h100@ndr-8x400"), "did you mean 2x8xh100@ndr-8x400?");
  expect_tells(refused("8a100-40gb"), "did you mean 1x8xa100-40gb?");
  expect_tells(refused("8h10"), "--cluster");
  expect_tells(refused("8*8*h100"), "did you mean 8x8xh100?");
  expect_tells(refused("8 x 8 x h100"), "did you mean 8x8xh100?");
  expect_tells(refused("l40sx8"), "l40sx8 is not among the devices");
}

TEST(ClusterFiles, MachinesOfCloudsAreKnownByTheirNames) {
  EXPECT_EQ(load("p5.48xlarge").device.name, "H100-SXM5-80GB");
  EXPECT_EQ(load("2xp4de.24xlarge").gpus(), 16);  // machines, not GPUs
  EXPECT_EQ(load("2xp4de.24xlarge").fabric.name, "efa-p4d");
  EXPECT_EQ(load("2xp4de").gpus(), 16) << "by its short name as well";
  EXPECT_EQ(load("3xp5").nodes, 3);
  EXPECT_EQ(load("2xdgx-h100").gpus(), 16);
  EXPECT_EQ(load("16xh100").gpus(), 16) << "GPUs";
  EXPECT_EQ(load("16xh100-64").gpus(), 16) << "of a whole cluster GPUs too";
  EXPECT_EQ(load("2xDGX-A100").gpus(), 16);
  EXPECT_EQ(load("2xh100").gpus(), 2);
  for (const auto& [name, gpus] : {std::pair{"a3-megagpu-8g", "NODESx8xh100"},
                                   {"4xa2-ultragpu-8g", "NODESx8xa100-80gb"},
                                   {"Standard_ND96isr_H100_v5", "NODESx8xh100"},
                                   {"ND96amsr_A100_v4", "NODESx8xa100-80gb"},
                                   {"p5en.48xlarge", "NODESx8xh200"}})
    expect_tells(refused(name), gpus);
  // Cards without NVLink.
  for (const char* card : {"1x8xa10g", "1x8xl40s", "1x8xrtx4090", "1x8xt4"})
    expect_tells(refused(card), "--set node.link=pcie");
  EXPECT_EQ(refused("1x8xgh200").find("node.link"), std::string::npos);
}

TEST(ClusterFiles, FilesMayNamePresetsAndChangeThem) {
  const TempDir dir;
  const fs::path file = dir.path() / "mine.json";
  std::ofstream(file) << R"({
    // half of the links are gone
    "nodes": 4,
    "device": {"preset": "a100", "memory_GiB": {"value": 70, "source": "nvidia-smi", "date": "2025-01"}},
    "fabric": {"preset": "roce-4x200", "bandwidth_GBps": 60},
    "defects": [{"node": 1, "gpu": 2, "missing": true}]
  })";
  const ClusterSpec c = load(file.string());
  EXPECT_EQ(c.name, "mine");
  EXPECT_EQ(c.device.memory, from_gib(70));
  EXPECT_EQ(c.device.multiprocessors, 108);
  EXPECT_DOUBLE_EQ(c.node.nic_bandwidth.v, 15e9);
  EXPECT_EQ(c.gpus(), 31);
  // What is written whole reads back without any preset.
  write_json_file(file, json(c));
  EXPECT_EQ(load_cluster(file.string(), dir.path()), c);
}

TEST(ClusterFiles, BadFilesAreExplained) {
  const TempDir dir;
  const fs::path file = dir.path() / "bad.json";
  const auto told = [&](const std::string& text) {
    std::ofstream(file, std::ios::trunc) << text;
    return refused(file.string());
  };
  expect_tells(told(""), "empty");
  expect_tells(told("{\"nodes\": 4, \"device\": "), "truncated");
  expect_tells(told("[]"), "object");
  expect_tells(told(R"({"nodes": 4, "device": "a1000"})"), "device");
  expect_tells(told(R"({"nodes": 4, "device": {"preset": 3}})"), "device.preset");
  expect_tells(told(R"({"nodes": 4, "device": "a100", "fabric": "roce-4x20"})"), "roce-4x200");
  expect_tells(told(R"({"nodez": 4, "device": "a100"})"), "nodes");
  expect_tells(told(R"({"nodes": 1e400, "device": "a100"})"), "bad.json");
  expect_tells(
      told(
          R"({"nodes": 4, "device": "a100", "node": {"nic_bandwidth_GBps": 10}, "fabric": {"bandwidth_GBps": 10}})"),
      "contradict");
  expect_tells(told(R"({"nodes": 4})"), "device");
  expect_tells(refused(dir.path().string() + "/"), dir.path().string());
}

TEST(Overrides, AnyFieldByItsPath) {
  ClusterSpec c = load("8x8xh100");
  apply_overrides(c, {"fabric.bandwidth_GBps=100", "device.memory_GiB=70", "nodes=4", "node.link=nvlink_mesh",
                      "node.nvls=false", "fabric.rails=false", "device.peak_TFLOPS.bf16=800", "name=mine",
                      R"(defects=[{"node":3,"gpu":1,"missing":true}])"});
  EXPECT_DOUBLE_EQ(c.fabric.bandwidth.v, 100e9);
  EXPECT_DOUBLE_EQ(c.node.nic_bandwidth.v, 12.5e9);
  EXPECT_EQ(c.device.memory, from_gib(70));
  EXPECT_EQ(c.node.link, NodeLinkKind::nvlink_mesh);
  EXPECT_FALSE(c.fabric.rails);
  EXPECT_DOUBLE_EQ(c.device.peak.at(Dtype::bf16).v, 800e12);
  EXPECT_EQ(c.name, "mine");
  EXPECT_EQ(c.gpus(), 31);
  apply_overrides(c, {"node.nics=4"});
  EXPECT_DOUBLE_EQ(c.fabric.bandwidth.v, 50e9);
  const ClusterSpec before = c;
  apply_overrides(c, {});
  EXPECT_EQ(c, before);
}

// A DGX-1's rings are of its eight GPUs: half a node is another mesh, and numbers of one's own must be as many as GPUs.
TEST(Overrides, RingsOfAMeshAreOfAWholeNode) {
  EXPECT_EQ(load("2x8xv100-32gb").node.link_rings.size(), 8U);
  EXPECT_TRUE(load("2x4xv100-32gb").node.link_rings.empty());
  ClusterSpec c = load("2x8xv100-32gb");
  apply_overrides(c, {"node.gpus=4"});
  EXPECT_TRUE(c.node.link_rings.empty());
  apply_overrides(c, {"node.link_rings=[1,1,2,3]"});
  EXPECT_EQ(c.node.link_rings.size(), 4U);
  expect_tells(complaint([&] { apply_overrides(c, {"node.link_rings=[1,1,2]"}); }), "node.link_rings");
  expect_tells(complaint([&] { apply_overrides(c, {"node.gpus=four"}); }), "node.gpus");
}

TEST(Overrides, BadSettingsChangeNothingAndAreExplained) {
  ClusterSpec c = load("8x8xh100");
  const ClusterSpec before = c;
  const auto told = [&](const std::vector<std::string>& settings) {
    return complaint([&] { apply_overrides(c, settings); });
  };
  expect_tells(told({"fabric.bandwith_GBps=100"}), "did you mean bandwidth_GBps?");
  expect_tells(told({"fabric.bandwidth_GBps=nan"}), "fabric.bandwidth_GBps");
  expect_tells(told({"fabric.bandwidth_GBps=-1"}), "fabric.bandwidth_GBps");
  expect_tells(told({"fabric.bandwidth_GBps=1e308"}), "fabric.bandwidth_GBps");
  expect_tells(told({"fabric.bandwidth_GBps="}), "fabric.bandwidth_GBps");
  expect_tells(told({"fabric.bandwidth_GBps"}), "KEY=VALUE");
  expect_tells(told({"=5"}), "KEY=VALUE");
  expect_tells(told({"nodes=0"}), "--set: nodes");
  expect_tells(told({"node.nic_bandwidth_GBps=10", "fabric.bandwidth_GBps=10"}), "contradict");
  expect_tells(told({"fabric=3"}), "fabric");
  const std::string both = told({"nodez=1", "node.gpuz=2"});
  expect_tells(both, "nodez");
  expect_tells(both, "node.gpuz");
  EXPECT_EQ(c, before);
}
