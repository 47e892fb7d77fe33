// Which number formats can a device train in?
#pragma once

#include <optional>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"
#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// What is wrong with GEMMs in `compute` on this device: a format of 16 bits or less that it has no peak for. CPUs
// convert, and every device computes in fp32. The key is left to whoever asks.
std::optional<Problem> unknown_format(const DeviceSpec&, Dtype compute);

}  // namespace sextant
