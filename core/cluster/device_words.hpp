// Is the device that a driver, a log or a profile names the one of a preset? "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "AMD EPYC".
#pragma once

#include <string_view>

#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// What is not said (memory, form) is taken to be the preset's.
bool names_device(std::string_view words, const DeviceSpec&);

}  // namespace sextant
