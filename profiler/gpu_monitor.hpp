// How a GPU is doing: clocks, temperature, power and what holds the clocks down, as the driver's management library
// (NVML) says. A measurement without these cannot be told from one of a hot or capped GPU.
#pragma once

#include <memory>
#include <string>

#include "core/base/units.hpp"
#include "core/timeline/machine_facts.hpp"

namespace sextant {

// What holds clocks down, from the driver's bits: "power cap", "heat", "power brake, heat". Not what is no hindrance: an
// idle GPU, clocks that were asked for.
std::string clock_limits(unsigned long long reasons);

class GpuMonitor {
 public:
  explicit GpuMonitor(int ordinal);  // as CUDA counts
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  const std::string& missing() const;  // why nothing is known; empty when it is
  void describe(MachineFacts&) const;  // driver, highest clocks, power limit
  MachineCondition now(const std::string& at) const;
  Bytes memory_used() const;  // by all processes, and by the driver itself; 0: not known

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace sextant
