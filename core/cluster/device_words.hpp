// Is the device that a driver, a log or a profile names the one of a preset? "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "AMD EPYC".
#pragma once

#include <array>
#include <string_view>

#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// What is not said (memory, form) is taken to be the preset's.
bool names_device(std::string_view words, const DeviceSpec&);

// What the makers' names of devices begin with: "NVIDIA A100-SXM4-80GB".
inline constexpr std::array<std::string_view, 3> kDeviceMakers = {"NVIDIA ", "Tesla ", "AMD Instinct "};

// Does a maker's word for a device begin with a product, as "A100-SXM4-80GB" and "GeForce RTX 4090" do? "Graphics Device", as drivers
// call what is newer than they are, and "Release 24.07" do not.
bool names_product(std::string_view words);

// Of a product that has no preset: its generation, and the preset by which to describe it.
struct NearestDevice {
  std::string_view generation;  // as its maker calls it; empty: not known
  std::string_view preset;
  bool of_generation = false;  // the preset is of that generation too
  bool pcie = false;           // it has no NVLink, which the preset's node has
};
// "gh200": Hopper, by H100; "l40s": Ada Lovelace, of which no preset is, by A100.
NearestDevice nearest_device(std::string_view product);

// What a cloud calls a machine, as GPUs of it: "a3-megagpu-8g" is "8xh100". Empty: not known.
std::string_view gpus_of_machine(std::string_view name);

// Do two names differ by a slip of the keyboard or in what one of them leaves out, and not by the product? "h10" and "h100",
// "a100-80g" and "a100-80gb" do; "gh200" and "gb200", "a10" and "a100", "a100-120gb" and "a100-40gb" are products of their own.
bool same_product(std::string_view a, std::string_view b);

}  // namespace sextant
