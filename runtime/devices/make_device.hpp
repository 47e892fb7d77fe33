// Every kind of device there is, and how to make one: the only header that names them all.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/units.hpp"
#include "runtime/devices/device.hpp"

namespace sextant {

struct CpuDeviceOptions {
  Bytes device_memory = from_gib(64);  // what allocate(Space::device) may hand out at most
  Bytes host_memory = from_gib(64);
  BytesPerSecond host_link;  // emulated, per direction; 0 = copies take only their own time
  Seconds host_link_latency;
  bool unified = true;  // false: as a GPU, whose memory the host reaches by copies alone
  // Called at once, on the stream's thread, when a task throws: the place to abort communicators.
  std::function<void(const std::string& what)> on_error;
};
// One worker thread per stream.
std::unique_ptr<Device> make_cpu_device(CpuDeviceOptions);

// What a build without CUDA says when it is asked for a GPU.
inline constexpr const char* kNoCuda =
    "built without CUDA: configure again where its toolkit is installed (nvcc, cuBLAS, cuDNN), without "
    "-DSEXTANT_CUDA=OFF";

// GPUs of this machine. Without any, `why_none` says why: no driver, one too old, a build without CUDA.
struct CudaGpu {
  std::string name;
  Bytes memory;
  int major = 0, minor = 0, multiprocessors = 0;  // of the compute capability
  Bytes level2;
  std::string refused;  // why it cannot be used; empty when it can
};
std::vector<CudaGpu> cuda_gpus(std::string& why_none);

struct CudaDeviceOptions {
  int ordinal = 0;
  Bytes host_memory = from_gib(1 << 20);  // page-locked, at most
  bool rehearses = true;                  // false: no timed choices, the same GEMMs in every run
};
// Throws BackendError with the reason when it cannot be used.
std::unique_ptr<Device> make_cuda_device(const CudaDeviceOptions&);

// No arithmetic and no threads: a task runs at once, on the caller, and moves its stream's clock with
// virtual_clock(). Copies take no time. Twin of the simulator.
std::unique_ptr<Device> make_virtual_device();
Seconds& virtual_clock(NativeStream);

}  // namespace sextant
