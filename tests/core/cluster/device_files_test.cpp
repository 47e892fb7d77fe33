// Devices of a folder of one's own: what is wrong with them is told with their file.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/json_io.hpp"
#include "core/cluster/cluster_files.hpp"
#include "tests/support/temp_dir.hpp"

using namespace sextant;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path kShipped = fs::path(SEXTANT_SOURCE_DIR) / "tools/presets";

// A folder of one's own with a device beside the shipped ones.
class OwnPresets : public ::testing::Test {
 protected:
  TempDir folder_;
  fs::path presets_ = folder_.path() / "presets";

  void SetUp() override { fs::copy(kShipped, presets_, fs::copy_options::recursive); }
  json device() const { return read_json_file(kShipped / "devices/H100-SXM5-80GB.json"); }
  void write(const std::string& name, json device) const {
    device["device"]["name"] = name;
    device["aliases"] = device.value("own", json::array());
    device.erase("own");
    std::ofstream(presets_ / "devices" / (name + ".json")) << device;
  }
  std::string refused(const std::string& cluster) const {
    try {
      load_cluster(cluster, presets_);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(OwnPresets, AnAliasOfTwoDevicesIsRefused) {
  json own = device();
  own["own"] = {"x9", "H-100"};  // however it is spelled
  write("X900-80GB", own);
  EXPECT_EQ(refused("2x8xx9"), "");
  const std::string text = refused("2x8xh100");
  for (const char* part : {"X900-80GB.json", "H100-SXM5-80GB.json", "aliases", "H-100"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}

TEST_F(OwnPresets, WhatIsWrongInADeviceIsToldWithItsFile) {
  const auto expect = [&](const json& device, std::initializer_list<const char*> parts) {
    write("X900-80GB", device);
    const std::string text = refused("2x8xX900-80GB");
    EXPECT_EQ(text.find("--cluster"), std::string::npos) << text;
    EXPECT_NE(text.find("devices/X900-80GB.json"), std::string::npos) << text;
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  };
  json j = device();
  j["device"].erase("multiprocessors");
  expect(j, {"device.multiprocessors"});
  j = device();
  j["device"]["generation"] = "hooper";
  expect(j, {"device.generation", "hooper"});
  j = device();
  j["node"]["link_latency_us"] = "2";
  expect(j, {"node.link_latency_us"});
  j = device();
  j["fabric"] = "ndr-8x40";
  expect(j, {"fabric", "ndr-8x40"});
  j = device();
  j.erase("fabric");
  expect(j, {"fabric", "sextant presets fabrics"});
  write("X900-80GB", device());
  EXPECT_EQ(refused("2x8xX900-80GB"), "");
  fs::copy(presets_ / "devices/X900-80GB.json", presets_ / "devices/Y900-80GB.json");
  EXPECT_NE(refused("2x8xY900-80GB").find("as the file is called"), std::string::npos);
}

}  // namespace
