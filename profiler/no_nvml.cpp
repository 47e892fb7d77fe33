// Linked instead of nvml_state.cpp in a build without CUDA.
#include "profiler/gpu_state.hpp"

namespace sextant {

struct GpuState::Library {
  std::string missing = "built without CUDA";
};
GpuState::GpuState(int) : library_(std::make_unique<Library>()) {}
GpuState::~GpuState() = default;
const std::string& GpuState::missing() const { return library_->missing; }
void GpuState::describe(MachineFacts&) const {}
MachineCondition GpuState::now(const std::string& at) const {
  MachineCondition c;
  c.at = at;
  return c;
}

}  // namespace sextant
