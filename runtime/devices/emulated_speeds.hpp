// How fast the parts of an emulated machine are at this moment: CPU ranks compute and exchange as slowly as these say. Written
// between steps by whoever plays the machine, read by all ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

namespace sextant {

struct EmulatedSpeeds {
  explicit EmulatedSpeeds(std::size_t ranks) : compute(ranks), node_link(ranks), network(ranks) {
    for (auto* speeds : {&compute, &node_link, &network})
      for (auto& speed : *speeds) speed = 1.0;
  }
  // By world rank, (0, 1]: of its device, of its links inside the node, of its node's NICs.
  std::vector<std::atomic<double>> compute, node_link, network;
};

}  // namespace sextant
