#include <array>
#include <utility>

#include "profiler/gpu_monitor.hpp"

namespace sextant {

std::string clock_limits(unsigned long long reasons) {
  // nvmlClocksEventReason* of nvml.h.
  constexpr std::array<std::pair<unsigned long long, const char*>, 6> kNames = {{
      {0x04, "power cap"},
      {0x08, "hardware slowdown"},
      {0x20, "heat"},
      {0x40, "hardware heat"},
      {0x80, "power brake"},
      {0x10, "another GPU's clocks"},
  }};
  std::string text;
  for (const auto& [bit, name] : kNames)
    if (reasons & bit) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace sextant
