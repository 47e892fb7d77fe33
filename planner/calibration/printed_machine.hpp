// On which machine was this printed? What a log or a table says in passing: devices by name (nvidia-smi -L, torch's properties), and in
// NCCL's own lines (NCCL_DEBUG=INFO) ranks of a node, network and NICs. What is not said stays empty.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sextant {

struct PrintedMachine {
  std::vector<std::string> devices;  // each name once, as the driver has it
  int gpus_per_node = 0;             // ranks on one node of the largest communicator
  int of_ranks = 0;                  // ranks of that communicator; 0: all of the job
  std::string network;               // as FabricSpec::kind: infiniband, roce, ethernet, efa
  int nics = 0;                      // that NCCL found on a node
};

// Of all ranks' lines.
PrintedMachine printed_machine(std::string_view text);

}  // namespace sextant
