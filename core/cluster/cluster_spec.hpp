// What it is trained on: devices, the links inside a node, the network between nodes, and what is wrong with
// some of them. Values only; core/cluster/topology.hpp makes the graph and answers questions about it. Every number
// of a preset carries its unit, source and date beside it (tools/presets/devices, tools/presets/fabrics).
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "core/base/units.hpp"

namespace sextant {

// Those with constants of their own, in presets/cost.
inline constexpr std::array<std::string_view, 6> kGenerations = {"volta",     "ampere",          "hopper",
                                                                 "blackwell", "blackwell_ultra", "cpu"};

struct DeviceSpec {
  std::string name;                 // preset name, e.g. "A100-SXM4-80GB"
  std::string generation;           // volta, ampere, hopper, blackwell, cpu: selects kernel constants
  Bytes memory;                     // usable by a process: what the driver reports, not the marketing figure
  BytesPerSecond memory_bandwidth;  // HBM, data sheet
  std::map<Dtype, FlopsPerSecond> peak;  // dense tensor-core peaks
  int multiprocessors = 0;
  Seconds launch_overhead;        // of one kernel
  BytesPerSecond host_link;       // PCIe or C2C, per direction
  double power_W = 0;             // board power
  double power_limit_W = 0;       // of a capped board (nvidia-smi -pl); 0 = none
  double clock_factor = 1;        // of the clock that the peaks are of, where it is held (nvidia-smi -lgc)
  double price_usd_per_hour = 0;  // of one GPU, on-demand list price; 0 = unknown
  bool operator==(const DeviceSpec&) const = default;
};

// The clock of the multiprocessors over that of the peaks, (0, 1]: the lower of clock_factor and what a power limit leaves,
// the square root of its share of the board's power. Memory keeps its own. Source: dynamic power is f V^2; where V falls with f
// that is the cube root, where V is at its floor the share itself. Six published bf16 runs of torchtitan at 500 of 700 W are
// 6 % off in between, 10 % with the cube root.
double clock_share(const DeviceSpec&);

enum class NodeLinkKind : std::uint8_t { nvswitch, nvlink_mesh, pcie, shared_memory };

struct NodeSpec {
  int gpus = 8;
  NodeLinkKind link = NodeLinkKind::nvswitch;
  BytesPerSecond link_bandwidth;  // per GPU and direction, all its links to the others together
  // Of a mesh whose GPUs are not all linked alike: how many rings their links make, by ranks from 1 to all.
  std::vector<double> link_rings;
  Seconds link_latency;
  bool nvls = false;     // in-switch reduction
  int domain_nodes = 1;  // nodes that share one NVLink domain (18 trays of an NVL72 system)
  int nics = 8;
  BytesPerSecond nic_bandwidth;  // per NIC and direction
  Bytes host_memory;
  BytesPerSecond host_memory_bandwidth;
  bool operator==(const NodeSpec&) const = default;
};

struct FabricSpec {
  std::string name;          // "ndr-8x400", "roce-4x200", ...
  std::string kind;          // infiniband, roce, efa, omnipath, ethernet, none
  BytesPerSecond bandwidth;  // nominal, one node, per direction: nics * nic_bandwidth
  double efficiency = 0.8;   // reachable share of nominal for large messages
  Seconds latency;           // one hop of a ring between nodes, as collectives see it
  Seconds start;             // of a collective between nodes, beyond what one inside a node takes
  // Of collectives that follow each other: each node adds the message's time at `congestion`, and never more than
  // `queued_latency` (both twice in an all-reduce), in place of hops. 0: they wait for their hops as others do.
  BytesPerSecond congestion;
  Seconds queued_latency;
  int leaf_nodes = 0;             // nodes under one leaf switch; 0 = one level
  double oversubscription = 1.0;  // of leaf uplinks: 1 = full bisection, 2 = half, ...; needs leaf_nodes
  bool rails = true;              // NIC i of every node meets on rail i
  bool in_network = false;        // SHARP
  bool reduces_inside = false;    // all-reduces exchange between nodes what each node reduced inside (trees,
                                  // not rings over all ranks); with SHARP always
  bool operator==(const FabricSpec&) const = default;
};

// Something that is not as the rest: a slow GPU, a missing one, a degraded NIC or link. Of a node, or of the leaf switches
// over `fabric.leaf_nodes` nodes, of which only the uplinks can be slow.
struct Defect {
  int node = -1;                  // -1: of a leaf
  int gpu = -1;                   // -1: the whole node
  int nic = -1;                   // of the node, or the rail of the leaf; -1: all of them
  int leaf = -1;                  // leaf l is above the nodes from l * leaf_nodes on; -1: of a node
  double compute_factor = 1.0;    // speed of the device, (0, 1]
  double node_link_factor = 1.0;  // speed of its links inside the node
  double network_factor =
      1.0;               // speed of the GPU's NIC, of the NIC, of all of the node's, or of the leaf's uplinks
  bool missing = false;  // not usable
  bool operator==(const Defect&) const = default;
};

// Run-to-run variation, as standard deviations of a lognormal factor on the mean.
struct JitterSpec {
  double compute_sigma = 0.0;  // per rank and step: stragglers
  double network_sigma = 0.0;  // of the network's bandwidth, per step
  bool operator==(const JitterSpec&) const = default;
};

// Where checkpoints go, as the whole job sees it. 0 = not known.
struct StorageSpec {
  BytesPerSecond write, read;  // all nodes together, sustained
  BytesPerSecond node;         // one node's own limit, per direction; 0 = none below the whole
  bool operator==(const StorageSpec&) const = default;
};

// What interrupts a run. Failures of nodes are independent and come at a constant rate (exponential times between them).
struct FailureSpec {
  double node_mtbf_hours =
      0;            // mean time between failures of one node with its GPUs, NICs and links; 0 = not known
  Seconds restart;  // from a failure to the first step again, without reading the checkpoint
  bool operator==(const FailureSpec&) const = default;
};

struct ClusterSpec {
  std::string name;
  int nodes = 1;
  DeviceSpec device;
  NodeSpec node;
  FabricSpec fabric;
  std::vector<Defect> defects;
  JitterSpec jitter;
  StorageSpec storage;
  FailureSpec failures;
  bool operator==(const ClusterSpec&) const = default;
  int gpus() const;  // usable: without missing ones
};

std::string_view name(NodeLinkKind);

std::vector<Problem> validate(const ClusterSpec&);

// The whole spec, self-contained, units in the keys. Each number may stand as {"value": 2039, "source":
// "...", "date": "2021-06"}. The rate of the network may be given by the NIC (node.nic_bandwidth_GBps) or by
// the node (fabric.bandwidth_GBps = nics * nic_bandwidth_GBps); given twice, both must agree. Names of
// presets in place of objects are resolved by core/cluster/cluster_files.hpp.
void to_json(nlohmann::json&, const DeviceSpec&);
void from_json(const nlohmann::json&, DeviceSpec&);
void to_json(nlohmann::json&, const NodeSpec&);
void from_json(const nlohmann::json&, NodeSpec&);
void to_json(nlohmann::json&, const FabricSpec&);
void from_json(const nlohmann::json&, FabricSpec&);
void to_json(nlohmann::json&, const Defect&);
void from_json(const nlohmann::json&, Defect&);
void to_json(nlohmann::json&, const JitterSpec&);
void from_json(const nlohmann::json&, JitterSpec&);
void to_json(nlohmann::json&, const StorageSpec&);
void from_json(const nlohmann::json&, StorageSpec&);
void to_json(nlohmann::json&, const FailureSpec&);
void from_json(const nlohmann::json&, FailureSpec&);
void to_json(nlohmann::json&, const ClusterSpec&);
void from_json(const nlohmann::json&, ClusterSpec&);

}  // namespace sextant
