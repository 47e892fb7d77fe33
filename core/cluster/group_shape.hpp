// Where the ranks of one communicator lie and what links they get: all that a collective's price depends on
// besides its kind and size. Made by Topology, carried inside CollectiveWork, so that pricing needs no graph
// of the cluster.
#pragma once

#include "core/base/units.hpp"

namespace sextant {

struct GroupShape {
  int size = 1;            // ranks
  int nodes = 1;           // nodes spanned; nodes of one NVLink domain (NVL72) count as one
  int ranks_per_node = 1;  // of this group, in its fullest node
  BytesPerSecond
      node_bandwidth;  // one rank's links inside the node, per direction, shared fairly; nominal; 0 if unused
  BytesPerSecond network_bandwidth;  // share of one node's NICs for all ranks of the group in that node, per
                                     // direction, after the fabric's efficiency, NIC sharing, degraded links
                                     // and oversubscription; 0 if unused
  Seconds node_latency;              // one hop inside the node
  Seconds network_latency;           // one hop between nodes
  Seconds network_start;             // of a collective between nodes, beyond what one inside a node takes
  // In a queue of collectives each node adds the message's time at this rate, and no more than this latency, in place of
  // hops; 0 and 0 elsewhere.
  BytesPerSecond queued_bandwidth;
  Seconds queued_latency;
  bool switched = false;        // NVSwitch (all-to-all) rather than a mesh or PCIe
  bool in_switch = false;       // the switch inside a node can reduce (NVLS)
  bool in_network = false;      // those between nodes can (SHARP)
  bool reduces_inside = false;  // an all-reduce exchanges between nodes what each node reduced inside
  bool operator==(const GroupShape&) const = default;
};

}  // namespace sextant
