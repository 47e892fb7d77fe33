// The driver's management library of the emulated machine: an H100-like GPU of fixed clocks whose memory in use follows the
// emulated allocations. As nvml.h states the calls that the project makes; another signature would not link there.
#include <cstdio>
#include <cstring>

#include "tests/cuda/emulation/machine.hpp"

namespace {
constexpr int kSuccess = 0, kInvalidArgument = 2, kNotFound = 6;
constexpr unsigned kSmClock = 1, kMemoryClock = 2;
constexpr unsigned long long kMiB = 1 << 20, kOfDriver = 500 * kMiB, kOfContext = 700 * kMiB, kPowerCap = 0x4;
int gpus[emulation::kGpus];
bool begun = false;

int clock_of(const void* device, unsigned which, unsigned* mhz, unsigned sm, unsigned memory) {
  if (!begun || !device || !mhz) return kInvalidArgument;
  if (which != kSmClock && which != kMemoryClock) return kInvalidArgument;
  *mhz = which == kSmClock ? sm : memory;
  return kSuccess;
}
}  // namespace

extern "C" {

int nvmlInit_v2() {
  begun = true;
  return kSuccess;
}
int nvmlShutdown() {
  begun = false;
  return kSuccess;
}
const char* nvmlErrorString(int) { return "emulated error"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  unsigned domain = 0, bus = 0;
  if (!begun || std::sscanf(address, "%x:%x:", &domain, &bus) != 2) return kInvalidArgument;
  if (bus >= emulation::kGpus) return kNotFound;
  *device = &gpus[bus];
  return kSuccess;
}
int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  return std::snprintf(text, bytes, "999.1") < static_cast<int>(bytes) ? kSuccess : kInvalidArgument;
}
int nvmlDeviceGetClockInfo(void* device, unsigned which, unsigned* mhz) {
  return clock_of(device, which, mhz, 1755, 2619);
}
int nvmlDeviceGetMaxClockInfo(void* device, unsigned which, unsigned* mhz) {
  return clock_of(device, which, mhz, 1980, 2619);
}
int nvmlDeviceGetTemperature(void*, unsigned sensor, unsigned* celsius) {
  if (sensor != 0) return kInvalidArgument;
  *celsius = 45;
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 350'000;
  return kSuccess;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return kSuccess;
}
// nvmlMemory_t: total, free, used. A context is there once something has been allocated.
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  const auto total = static_cast<unsigned long long>(emulation::kMemory),
             allocated = total - static_cast<unsigned long long>(emulation::machine().free_bytes());
  memory[0] = total;
  memory[2] = kOfDriver + allocated + (allocated > 0 ? kOfContext : 0);
  memory[1] = total - memory[2];
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = kPowerCap;
  return kSuccess;
}
}
