#include "core/cluster/device_formats.hpp"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {

std::optional<Problem> unknown_format(const DeviceSpec& device, Dtype compute) {
  const bool narrow = compute == Dtype::bf16 || compute == Dtype::fp16 || compute == Dtype::fp8;
  if (!narrow || device.generation == "cpu" || device.peak.contains(compute)) return std::nullopt;
  std::vector<std::string_view> has;
  for (const auto& [dtype, peak] : device.peak) has.push_back(name(dtype));
  return Problem{"", "", std::string(name(compute)),
                 fmt::format("what {} computes in: {}", device.name, fmt::join(has, ", ")), ""};
}

}  // namespace sextant
