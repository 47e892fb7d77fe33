// A cluster as a value: round trips, ranges, inconsistencies, and what each bad input is told.
#include "core/cluster/cluster_spec.hpp"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>

#include "core/base/annotated.hpp"
#include "core/cluster/device_formats.hpp"
#include "tests/core/cluster/cluster_support.hpp"

using namespace sextant;
using nlohmann::json;
using sextant::test::small_cluster;

namespace {

json small_json() { return small_cluster(4); }

// All that reading `j` complains about, one line a problem; empty when it is fine.
std::string complaint(const json& j) {
  try {
    ClusterSpec c;
    from_json(j, c);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}
std::string complaint(const ClusterSpec& c) {
  std::string out;
  for (const auto& p : validate(c)) out += to_string(p) + "\n";
  return out;
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

}  // namespace

#define EXPECT_TELLS(text, part) EXPECT_TRUE(contains(text, part)) << "in: " << text

TEST(ClusterSpec, SmallClusterIsLawful) {
  EXPECT_EQ(complaint(small_cluster(4)), "");
  EXPECT_EQ(complaint(small_json()), "");
  EXPECT_EQ(small_cluster(4).gpus(), 32);
}

TEST(ClusterSpec, MissingGpusAreCountedOnce) {
  ClusterSpec c = small_cluster(2);
  c.defects = {{.node = 0, .gpu = 1, .missing = true},
               {.node = 0, .gpu = 1, .missing = true},
               {.node = 1, .missing = true}};
  EXPECT_EQ(c.gpus(), 7);
  c.defects.push_back({.node = 0, .missing = true});
  EXPECT_TELLS(complaint(c), "every GPU is missing");
}

// Of values with a short decimal form, as all inputs have; a computed 1/3 may move by its last bit.
RC_GTEST_PROP(ClusterSpecProperty, JsonRoundTripIsExact, ()) {
  ClusterSpec c = small_cluster(*rc::gen::inRange(1, 3000));
  const auto rate = [] { return BytesPerSecond(*rc::gen::inRange<long>(1, 1'000'000'000'000)); };
  c.node.nic_bandwidth = rate();
  c.fabric.bandwidth = BytesPerSecond(c.node.nics * c.node.nic_bandwidth.v);
  c.node.link_bandwidth = rate();
  c.device.memory = Bytes(*rc::gen::inRange<std::int64_t>(1, 1L << 40));
  c.node.link_latency = Seconds(*rc::gen::inRange(0, 1000000) / 1e9);
  c.fabric.efficiency = *rc::gen::inRange(1, 1000) / 1000.0;
  c.device.peak[Dtype::fp8] = FlopsPerSecond(*rc::gen::inRange(1, 100000) * 1e11);
  c.jitter = {0.01, 0.2};
  c.defects = {{.node = 0, .gpu = 3, .compute_factor = 0.9}};
  c.defects.push_back({.node = 0, .nic = 2, .network_factor = 0.5});
  if (c.nodes > 1) {
    c.fabric.leaf_nodes = 1;
    c.defects.push_back({.leaf = 1, .network_factor = 0.25});
  }
  ClusterSpec back;
  from_json(json::parse(json(c).dump()), back);
  RC_ASSERT(json(back) == json(c));
  RC_ASSERT(back.device == c.device);
  RC_ASSERT(back.node == c.node);
  RC_ASSERT(back.fabric == c.fabric);
  RC_ASSERT(back == c);
}

TEST(ClusterSpec, NumbersMayCarryTheirOrigin) {
  json j = small_json();
  j["device"]["memory_bandwidth_GBps"] = {{"value", 2039}, {"source", "data sheet"}, {"date", "2021-06"}};
  j["device"]["peak_TFLOPS"]["bf16"] = {{"value", 312}, {"unit", "TFLOP/s"}, {"origin", "S"}};
  EXPECT_EQ(complaint(j), "");
  j["device"]["memory_bandwidth_GBps"]["sorce"] = "x";
  EXPECT_TELLS(complaint(j), "device.memory_bandwidth_GBps.sorce");
  EXPECT_TELLS(complaint(j), "did you mean source?");
  j["device"]["memory_bandwidth_GBps"] = {{"source", "a source without a value"}};
  EXPECT_NE(complaint(j), "");
}

TEST(ClusterSpec, EachBadFieldIsNamed) {
  const auto with = [](const std::string& pointer, const json& value) {
    json j = small_json();
    j[json::json_pointer(pointer)] = value;
    return complaint(j);
  };
  EXPECT_TELLS(with("/nodes", 0), "nodes: found 0");
  EXPECT_TELLS(with("/nodes", -3), "nodes");
  EXPECT_TELLS(with("/nodes", 2.5), "whole number");
  EXPECT_TELLS(with("/nodes", 1e308), "nodes");
  EXPECT_TELLS(with("/nodes", 4000000000u), "nodes");
  EXPECT_TELLS(with("/nodes", "eight"), "\"eight\"");
  EXPECT_TELLS(with("/device/memory_GiB", 1e308), "device.memory_GiB");
  EXPECT_TELLS(with("/device/memory_GiB", -80), "device.memory_GiB");
  EXPECT_TELLS(with("/device/memory_GiB", std::nan("")), "device.memory_GiB");
  EXPECT_TELLS(with("/device/memory_GiB", INFINITY), "device.memory_GiB");
  EXPECT_TELLS(with("/device/generation", "hoper"), "did you mean hopper?");
  EXPECT_TELLS(with("/device/peak_TFLOPS/bf17", 100), "bf16");
  EXPECT_TELLS(with("/device/peak_TFLOPS", json::object()), "device.peak_TFLOPS");
  EXPECT_TELLS(with("/node/link", "nvswich"), "nvswitch");
  EXPECT_TELLS(with("/fabric/kind", "infinband"), "did you mean infiniband?");
  EXPECT_TELLS(with("/fabric/efficiency", 1.2), "fabric.efficiency");
  EXPECT_TELLS(with("/fabric/oversubscription", 0.5), "fabric.oversubscription");
  EXPECT_TELLS(with("/fabric/latency", 5), "fabric.latency: unknown field");
  EXPECT_TELLS(with("/defects", json::array({{{"node", 1}, {"compute_factor", 0}}})),
               "defects[0].compute_factor");
  EXPECT_TELLS(with("/defects", json::array({{{"node", 9}}})), "defects[0].node");
  EXPECT_TELLS(with("/defects", json::array({{{"node", 0}, {"gpu", 8}}})), "defects[0].gpu");
  EXPECT_TELLS(with("/device", 3), "device");
  EXPECT_TELLS(complaint(json(7)), "object");
}

// What would change nothing, or has no meaning, is not taken in silence.
TEST(ClusterSpec, DefectsAndOversubscriptionThatWouldBeInertAreRefused) {
  const auto with = [](const json& fabric, const json& defect) {
    json j = small_json();
    j["nodes"] = 8;
    j["fabric"].update(fabric);
    if (!defect.is_null()) j["defects"] = json::array({defect});
    return complaint(j);
  };
  EXPECT_TELLS(with({{"oversubscription", 4}}, nullptr),
               "fabric.oversubscription: found 4, expected 1 without fabric.leaf_nodes");
  EXPECT_EQ(with({{"oversubscription", 4}, {"leaf_nodes", 2}}, nullptr), "");
  EXPECT_TELLS(with({{"congestion_GBps", 900}}, nullptr),
               "fabric.queued_latency_us: found 0, expected above 0");
  EXPECT_TELLS(with({{"queued_latency_us", 200}}, nullptr),
               "fabric.congestion_GBps: found 0, expected above 0");
  EXPECT_EQ(with({{"congestion_GBps", 900}, {"queued_latency_us", 200}}, nullptr), "");
  EXPECT_EQ(with({{"leaf_nodes", 2}}, {{"leaf", 3}, {"network_factor", 0.5}}), "");
  EXPECT_EQ(with({{"leaf_nodes", 2}}, {{"leaf", 3}, {"nic", 7}, {"network_factor", 0.5}}), "");
  EXPECT_EQ(with(json::object(), {{"node", 3}, {"nic", 7}, {"network_factor", 0.5}}), "");
  EXPECT_TELLS(with(json::object(), {{"network_factor", 0.5}}),
               "defects[0].node: found -1 and no leaf, expected a node from 0 on, or a leaf");
  EXPECT_TELLS(with({{"leaf_nodes", 2}}, {{"leaf", 1}, {"node", 1}}), "expected one of the two");
  EXPECT_TELLS(with(json::object(), {{"leaf", 1}}),
               "defects[0].leaf: found 1, expected no leaf without fabric.leaf_nodes");
  EXPECT_TELLS(with({{"leaf_nodes", 8}}, {{"leaf", 0}}), "all 8 nodes are under one");
  EXPECT_TELLS(with({{"leaf_nodes", 2}}, {{"leaf", 4}}), "a leaf from 0 to 3");
  EXPECT_TELLS(with({{"leaf_nodes", 2}}, {{"leaf", 1}, {"missing", true}}),
               "defects[0].missing: found true, expected false for a leaf");
  EXPECT_TELLS(with({{"leaf_nodes", 2}, {"rails", false}}, {{"leaf", 1}, {"nic", 1}}),
               "-1 for a leaf without rails");
  EXPECT_TELLS(with(json::object(), {{"node", 3}, {"nic", 8}}), "defects[0].nic: found 8");
  EXPECT_TELLS(with(json::object(), {{"node", 3}, {"nic", 1}, {"compute_factor", 0.5}}),
               "expected 1 for one NIC");
}

TEST(ClusterSpec, AllProblemsAreToldTogether) {
  json j = small_json();
  j["device"]["memory_GiB"] = -1;
  j["node"]["gpus"] = 0;
  j["fabric"].erase("latency_us");
  const std::string text = complaint(j);
  EXPECT_TELLS(text, "device.memory_GiB");
  EXPECT_TELLS(text, "node.gpus");
  EXPECT_TELLS(text, "fabric.latency_us");
}

TEST(ClusterSpec, InconsistenciesAreRefused) {
  json j = small_json();
  j["fabric"]["bandwidth_GBps"] = 100;  // 8 NICs of 31.25 GB/s
  EXPECT_TELLS(complaint(j), "contradict");
  j["node"].erase("nic_bandwidth_GBps");
  EXPECT_EQ(complaint(j), "");
  j = small_json();
  j["fabric"].erase("bandwidth_GBps");
  ClusterSpec c;
  from_json(j, c);
  EXPECT_EQ(c.fabric.bandwidth.v, 250e9);
  c.node.nics = 0;
  c.fabric.bandwidth = {};
  EXPECT_TELLS(complaint(c), "a network between 4 nodes");
  c = small_cluster(4);
  c.node.link = NodeLinkKind::pcie;
  c.node.domain_nodes = 2;
  c.node.nvls = true;
  EXPECT_TELLS(complaint(c), "node.domain_nodes");
  EXPECT_TELLS(complaint(c), "node.nvls");
  c = small_cluster(131072);
  c.node.gpus = 1024;
  EXPECT_TELLS(complaint(c), "1048576 GPUs");
}

TEST(ClusterSpec, PowerAndClockLimitsLowerTheClock) {
  ClusterSpec c = small_cluster(4);
  c.device.power_W = 400;
  EXPECT_EQ(clock_share(c.device), 1);
  c.device.power_limit_W = 200;
  EXPECT_NEAR(clock_share(c.device), std::sqrt(0.5), 1e-15);
  c.device.clock_factor = 0.7;
  EXPECT_EQ(clock_share(c.device), 0.7);
  EXPECT_EQ(complaint(c), "");
  c.device.power_limit_W = 401;
  EXPECT_TELLS(complaint(c), "device.power_limit_W");
  c.device.power_limit_W = 40;
  EXPECT_TELLS(complaint(c), "device.power_limit_W");
  c.device.power_limit_W = 300;
  c.device.power_W = 0;
  EXPECT_TELLS(complaint(c), "device.power_W");
}

TEST(ClusterSpec, ValidateSeesWhatCodeSetBadly) {
  ClusterSpec c = small_cluster(4);
  c.device.memory = Bytes(-1);
  c.node.link_bandwidth = BytesPerSecond(std::nan(""));
  c.jitter.compute_sigma = INFINITY;
  const std::string text = complaint(c);
  EXPECT_TELLS(text, "device.memory_GiB");
  EXPECT_TELLS(text, "node.link_bandwidth_GBps");
  EXPECT_TELLS(text, "jitter.compute_sigma");
}

TEST(DeviceFormats, NarrowOnesNeedAPeak) {
  DeviceSpec d = small_cluster(1).device;
  EXPECT_FALSE(unknown_format(d, Dtype::bf16));
  EXPECT_FALSE(unknown_format(d, Dtype::fp32));
  const auto fp8 = unknown_format(d, Dtype::fp8);
  ASSERT_TRUE(fp8);
  EXPECT_TELLS(to_string(*fp8), "found fp8, expected what A100-SXM4-80GB computes in: bf16");
  d.generation = "cpu";
  EXPECT_FALSE(unknown_format(d, Dtype::fp8));
}
