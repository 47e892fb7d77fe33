// Linked instead of nvml_monitor.cpp in a build without CUDA.
#include "profiler/gpu_monitor.hpp"

namespace sextant {

struct GpuMonitor::Library {
  std::string missing = "built without CUDA";
};
GpuMonitor::GpuMonitor(int) : library_(std::make_unique<Library>()) {}
GpuMonitor::~GpuMonitor() = default;
const std::string& GpuMonitor::missing() const { return library_->missing; }
void GpuMonitor::describe(MachineFacts&) const {}
Bytes GpuMonitor::memory_used() const { return {}; }
MachineCondition GpuMonitor::now(const std::string& at) const {
  MachineCondition c;
  c.at = at;
  return c;
}

}  // namespace sextant
