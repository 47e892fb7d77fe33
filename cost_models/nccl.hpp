// How long does a collective take alone on the machine, as nccl-tests measures it? Rings and in-switch reduction inside
// a node or NVLink domain; rings, trees over nodes and in-network reduction between them. Constants come from published
// tables (tools/presets/nccl.json) and say how good the tables' hardware is; cost_models/collective.hpp prices the same
// collectives inside a training step, where launch and skew between ranks are added.
//
// Ignores protocols (LL, LL128, Simple) as such: start-up and filling time stand for them; other jobs' traffic.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "core/work.hpp"

namespace sextant {

struct NcclDevice {
  std::string device;          // text that the device's name contains
  double ring_efficiency = 0;  // of the links, for many ranks
  std::vector<double> rings;   // by ranks, from 1: of a mesh, how many rings its links make; empty = a switch
  double in_switch_efficiency = 0;  // all-reduce in the switch: bus rate over link rate; 0 = cannot
  std::string source, date;
};

struct NcclFabric {
  std::string fabric;  // text that the fabric in words contains
  bool hierarchical =
      false;              // nodes exchange what they have reduced inside; otherwise one ring over all ranks
  double efficiency = 0;  // of a node's nominal rate
  double nic_GBps = 0;    // of one GPU, where NVLink domains are joined
  double domain_efficiency = 0;          // bus rate over that NIC's, several domains
  double start_us = 0;                   // of a small message
  double per_domain_us = 0;              // ... by NVLink domains joined
  double fill_us = 0, fill_half_MB = 0;  // of a large message's pipeline; message that takes half of it
  std::string source, date;
};

struct NcclModel {
  double start_us = 0, per_rank_us = 0;  // of a collective inside a node
  double ring_half_ranks = 0;            // ring rate over n ranks: n / (n + this) of its limit
  std::vector<NcclDevice> devices;
  std::vector<NcclFabric> fabrics;
  int constants() const;  // how many numbers tables decided
};
NcclModel load_nccl_model(const std::filesystem::path& preset_dir);

struct NcclCase {
  CollectiveKind kind = CollectiveKind::all_reduce;
  double bytes = 0;  // as nccl-tests counts them
  int ranks = 1, nodes = 1;
  int domain_ranks = 8;  // ranks that share fast links: those of a node, or of an NVLink domain
  std::string device, fabric;
  double link = 0;          // bytes/s of one GPU's links inside, one direction
  double node_network = 0;  // bytes/s of one node, one direction, nominal
};

// Throws ConfigError naming the device or fabric that no table knows.
Seconds nccl_time(const NcclCase&, const NcclModel&);

// Bytes that a rank moves, over the message: nccl-tests' factor from algorithm to bus bandwidth.
double bus_factor(CollectiveKind, int ranks);

}  // namespace sextant
