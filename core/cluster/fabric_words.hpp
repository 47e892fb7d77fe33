// What free words of a network say of a node's ports: "8x HDR200", "4 x 400 Gb/s", "100GbE", "RoCE 1600 Gb/s per node".
#pragma once

#include <string>
#include <string_view>

namespace sextant {

// In small letters, numbers, words and the sign between them apart: "4xHDR200" is "4 x hdr 200". What is said of the links
// inside a node ("NVLink4 900 GB/s;") is left out where the network has a part of its own.
std::string fabric_words(std::string_view text);

// Zero where it is not said; a rate without ports ("1600 Gb/s per node") is that of one.
struct FabricPorts {
  int count = 0;
  double gbps = 0;       // Gb/s of one
  bool per_gpu = false;  // said to be one for each
};
FabricPorts fabric_ports(std::string_view text);

}  // namespace sextant
