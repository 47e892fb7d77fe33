// The fields of a cluster, listed once: JSON key with its unit, where it lives, what is lawful. Reading,
// writing and validation are three visitors over this list. Internal to core/cluster_spec.cpp.
#pragma once

#include <array>
#include <string_view>

#include "core/cluster_spec.hpp"

namespace sextant::cluster_fields {

// Lawful values in the key's unit.
struct Range {
  double low = 0, high = 0;
  bool above_low = false;  // low itself is excluded
};
constexpr Range positive(double high) { return {0, high, true}; }
constexpr Range from_zero(double high) { return {0, high, false}; }
constexpr Range kFactor = {0, 1, true};

enum class Need : std::uint8_t { required, optional };
using enum Need;

inline constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
inline constexpr double kGBps = 1e9, kTFLOPS = 1e12, kMicro = 1e-6;
inline constexpr int kMaxNodes = 131072, kMaxGpusPerNode = 1024, kMaxGpus = 1 << 20;

inline constexpr std::array<std::string_view, 4> kLinkNames = {"nvswitch", "nvlink_mesh", "pcie",
                                                               "shared_memory"};
inline constexpr std::array<std::string_view, 5> kGenerations = {"volta", "ampere", "hopper", "blackwell",
                                                                 "cpu"};
inline constexpr std::array<std::string_view, 6> kFabricKinds = {"infiniband", "roce",     "efa",
                                                                 "omnipath",   "ethernet", "none"};
inline constexpr std::array<std::string_view, 6> kPeakKeys = {"peak_fp8_TFLOPS",  "peak_fp16_TFLOPS",
                                                              "peak_bf16_TFLOPS", "peak_tf32_TFLOPS",
                                                              "peak_fp32_TFLOPS", "peak_fp64_TFLOPS"};

template <class Visitor, class Device>
void visit_device(Visitor& v, Device& d) {
  v.text("name", d.name, required);
  v.choice("generation", d.generation, kGenerations, required);
  v.quantity("memory_GiB", d.memory, kGiB, positive(1e6), required);
  v.quantity("memory_bandwidth_GBps", d.memory_bandwidth, kGBps, positive(1e6), required);
  v.peaks(d.peak, positive(1e6));
  v.integer("multiprocessors", d.multiprocessors, {1, 100000}, required);
  v.quantity("launch_overhead_us", d.launch_overhead, kMicro, from_zero(1e6), required);
  v.quantity("host_link_GBps", d.host_link, kGBps, positive(1e5), required);
  v.number("power_W", d.power_W, from_zero(1e5), optional);
  v.number("price_usd_per_hour", d.price_usd_per_hour, from_zero(1e5), optional);
}

template <class Visitor, class Node>
void visit_node(Visitor& v, Node& n) {
  v.integer("gpus", n.gpus, {1, kMaxGpusPerNode}, required);
  v.link_kind("link", n.link, required);
  v.quantity("link_bandwidth_GBps", n.link_bandwidth, kGBps, positive(1e5), required);
  v.quantity("link_latency_us", n.link_latency, kMicro, from_zero(1e6), required);
  v.boolean("nvls", n.nvls);
  v.integer("domain_nodes", n.domain_nodes, {1, 1024}, optional);
  v.integer("nics", n.nics, {0, 1024}, required);
  v.quantity("nic_bandwidth_GBps", n.nic_bandwidth, kGBps, from_zero(1e5), optional);
  v.quantity("host_memory_GiB", n.host_memory, kGiB, positive(1e7), required);
  v.quantity("host_memory_bandwidth_GBps", n.host_memory_bandwidth, kGBps, positive(1e6), required);
}

template <class Visitor, class Fabric>
void visit_fabric(Visitor& v, Fabric& f) {
  v.text("name", f.name, required);
  v.choice("kind", f.kind, kFabricKinds, required);
  v.quantity("bandwidth_GBps", f.bandwidth, kGBps, from_zero(1e6), optional);
  v.number("efficiency", f.efficiency, kFactor, required);
  v.quantity("latency_us", f.latency, kMicro, from_zero(1e6), required);
  v.integer("leaf_nodes", f.leaf_nodes, {0, kMaxNodes}, optional);
  v.number("oversubscription", f.oversubscription, {1, 1e3}, optional);
  v.boolean("rails", f.rails);
  v.boolean("in_network", f.in_network);
}

template <class Visitor, class D>
void visit_defect(Visitor& v, D& d) {
  v.integer("node", d.node, {0, kMaxNodes - 1}, required);
  v.integer("gpu", d.gpu, {-1, kMaxGpusPerNode - 1}, optional);
  v.number("compute_factor", d.compute_factor, kFactor, optional);
  v.number("node_link_factor", d.node_link_factor, kFactor, optional);
  v.number("network_factor", d.network_factor, kFactor, optional);
  v.boolean("missing", d.missing);
}

template <class Visitor, class Jitter>
void visit_jitter(Visitor& v, Jitter& j) {
  v.number("compute_sigma", j.compute_sigma, from_zero(2), optional);
  v.number("network_sigma", j.network_sigma, from_zero(2), optional);
}

template <class Visitor, class Cluster>
void visit_cluster(Visitor& v, Cluster& c) {
  v.text("name", c.name, optional);
  v.integer("nodes", c.nodes, {1, kMaxNodes}, required);
  v.object(
      "device", [&](auto& in) { visit_device(in, c.device); }, required);
  v.object(
      "node", [&](auto& in) { visit_node(in, c.node); }, required);
  v.object(
      "fabric", [&](auto& in) { visit_fabric(in, c.fabric); }, required);
  v.list("defects", c.defects, [](auto& in, auto& d) { visit_defect(in, d); });
  v.object(
      "jitter", [&](auto& in) { visit_jitter(in, c.jitter); }, optional);
}

}  // namespace sextant::cluster_fields
