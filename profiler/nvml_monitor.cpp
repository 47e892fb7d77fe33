// The only file that knows NVML, which comes with the driver. Its header is not part of every toolkit, so the few
// functions used are declared here as the library has had them since driver 450 (nvml.h: all return an int, 0 is
// success; a device is an opaque pointer).
#include <array>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.hpp"
#include "kernels/cuda/library.hpp"
#include "profiler/gpu_monitor.hpp"

namespace sextant {
namespace {

using NvmlDevice = struct nvmlDevice_st*;
constexpr unsigned kSmClock = 1, kMemoryClock = 2;  // nvmlClockType_t
constexpr unsigned kGpuTemperature = 0;             // nvmlTemperatureSensors_t
constexpr int kSuccess = 0;
struct NvmlMemory {  // nvmlMemory_t, in bytes
  unsigned long long total = 0, free = 0, used = 0;
};

}  // namespace

struct GpuMonitor::Library {
  cuda::Library library{"libnvidia-ml.so.1"};
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*by_address)(const char*, NvmlDevice*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*most_clock)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*temperature)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*power)(NvmlDevice, unsigned*) = nullptr;        // mW
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;  // mW
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*reasons)(NvmlDevice, unsigned long long*) = nullptr;
  NvmlDevice device = nullptr;
  bool begun = false;
  std::string missing;

  explicit Library(int ordinal) {
    missing = library.why_not();
    if (!missing.empty()) return;
    try {
      library.get(init, "nvmlInit_v2");
      library.get(shutdown, "nvmlShutdown");
      library.get(error_string, "nvmlErrorString");
      library.get(by_address, "nvmlDeviceGetHandleByPciBusId_v2");
      library.get(driver_version, "nvmlSystemGetDriverVersion");
      library.get(clock, "nvmlDeviceGetClockInfo");
      library.get(most_clock, "nvmlDeviceGetMaxClockInfo");
      library.get(temperature, "nvmlDeviceGetTemperature");
      library.get(power, "nvmlDeviceGetPowerUsage");
      library.get(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
      library.get(memory, "nvmlDeviceGetMemoryInfo");
      library.get(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
      require(init(), "nvmlInit");
      begun = true;
      // NVML counts all GPUs of the machine, CUDA those it may see: the address is common to both.
      std::array<char, 32> address{};
      if (const cudaError_t status =
              cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), ordinal);
          status != cudaSuccess) {
        cudaGetLastError();
        throw BackendError(fmt::format("cudaDeviceGetPCIBusId: {}", cudaGetErrorString(status)));
      }
      require(by_address(address.data(), &device), "nvmlDeviceGetHandleByPciBusId");
    } catch (const BackendError& error) {
      missing = error.what();
    }
  }
  ~Library() {
    if (begun) shutdown();
  }
  void require(int status, const char* call) const {
    if (status != kSuccess) throw BackendError(fmt::format("{}: {}", call, error_string(status)));
  }
  // A value that this GPU or user is not told is 0.
  double ask(int (*what)(NvmlDevice, unsigned*)) const {
    unsigned value = 0;
    return what(device, &value) == kSuccess ? static_cast<double>(value) : 0.0;
  }
  double ask(int (*what)(NvmlDevice, unsigned, unsigned*), unsigned which) const {
    unsigned value = 0;
    return what(device, which, &value) == kSuccess ? static_cast<double>(value) : 0.0;
  }
};

GpuMonitor::GpuMonitor(int ordinal) : library_(std::make_unique<Library>(ordinal)) {}
GpuMonitor::~GpuMonitor() = default;

const std::string& GpuMonitor::missing() const { return library_->missing; }

void GpuMonitor::describe(MachineFacts& facts) const {
  const Library& l = *library_;
  if (!l.missing.empty()) return;
  std::array<char, 96> version{};
  if (l.driver_version(version.data(), static_cast<unsigned>(version.size() - 1)) == kSuccess)
    facts.driver = version.data();
  facts.most_sm_clock_MHz = l.ask(l.most_clock, kSmClock);
  facts.most_memory_clock_MHz = l.ask(l.most_clock, kMemoryClock);
  facts.power_limit_W = 1e-3 * l.ask(l.power_limit);
}

MachineCondition GpuMonitor::now(const std::string& at) const {
  const Library& l = *library_;
  MachineCondition c;
  c.at = at;
  if (!l.missing.empty()) return c;
  c.sm_clock_MHz = l.ask(l.clock, kSmClock);
  c.memory_clock_MHz = l.ask(l.clock, kMemoryClock);
  c.temperature_C = l.ask(l.temperature, kGpuTemperature);
  c.power_W = 1e-3 * l.ask(l.power);
  unsigned long long reasons = 0;
  if (l.reasons(l.device, &reasons) == kSuccess) c.limited_by = clock_limits(reasons);
  return c;
}

Bytes GpuMonitor::memory_used() const {
  const Library& l = *library_;
  NvmlMemory memory;
  if (!l.missing.empty() || l.memory(l.device, &memory) != kSuccess) return {};
  return Bytes(static_cast<std::int64_t>(memory.used));
}

}  // namespace sextant
