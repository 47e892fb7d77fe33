// Is a table or a log of the machine that --cluster names? One of another device, node or network would move constants that are not its
// own.
#pragma once

#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "planner/calibration/printed_machine.hpp"

namespace sextant {

// What a file says of its machine, and how it was used there.
struct Origin {
  std::string file;
  std::string device;  // where the program prints its own; empty: printed.devices
  PrintedMachine printed;
  int ranks = 0, nodes = 1;  // that took part; of a log what its layout takes of --cluster
  int ranks_of_node = 0;     // most on one of them; 0: not said
  double device_GiB = 0;     // memory of the device; 0: not said
};

// What does not agree; notes are added on what is taken for granted. `any`: all is taken (--allow-other-device).
// Throws ConfigError, all differences at once.
void require_machine(const Origin&, const ClusterSpec&, bool any, std::vector<std::string>& notes);

}  // namespace sextant
