#include "tests/cuda/emulation/gpu.hpp"

#include <chrono>

#include "tests/cuda/emulation/machine.hpp"

namespace emulation {

Machine& machine() {
  static auto* instance = new Machine;  // its threads run until the process ends
  return *instance;
}

cudaError_t chosen(const char* call) {
  if (device_of_thread < 0)
    return machine().fail(cudaErrorInvalidDevice, std::string(call) + " on a thread that has chosen no GPU");
  return machine().broken() ? (last_error = cudaErrorIllegalAddress) : cudaSuccess;
}
cudaError_t usable(cudaStream_t s, const char* call) {
  if (const auto e = chosen(call); e != cudaSuccess) return e;
  if (!s || !machine().is_stream(s))
    return machine().fail(cudaErrorInvalidResourceHandle, std::string(call) + ": no stream that was made");
  if (s->device != device_of_thread)
    return machine().fail(cudaErrorInvalidResourceHandle,
                          std::string(call) + ": the stream of another GPU than the thread's");
  return cudaSuccess;
}
cudaError_t uncaptured(const char* call) {
  if (const auto e = chosen(call); e != cudaSuccess) return e;
  if (!capturing) return cudaSuccess;
  capturing->spoilt = true;
  return machine().fail(cudaErrorStreamCaptureUnsupported, std::string(call) + " while a stream is captured");
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}
int device_of(cudaStream_t s) { return s->device; }
Counts take_counts() { return machine().take_counts(); }
std::int64_t take_most_bytes() { return machine().take_most_bytes(); }
std::vector<std::string> take_reports() { return machine().take_reports(); }
void break_down() { machine().break_down(); }
void set_profiler(Profiler profiler) { machine().set_profiler(std::move(profiler)); }

cudaError_t set_kernel_attribute(const void* kernel, cudaFuncAttribute what, int value) {
  if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<std::size_t>(value) > kMostShared)
    return machine().fail(cudaErrorInvalidValue, "cudaFuncSetAttribute: more than a GPU has");
  const std::lock_guard lock(machine().shared_mutex);
  machine().shared_limits[kernel] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

void enqueue_kernel(cudaStream_t s, const Launch& l, std::function<void()> kernel) {
  if (usable(s, "a launch") != cudaSuccess) return;
  const std::size_t threads = std::size_t{l.block.x} * l.block.y * l.block.z;
  std::size_t limit = kShared;
  {
    const std::lock_guard lock(machine().shared_mutex);
    if (const auto own = machine().shared_limits.find(l.kernel); own != machine().shared_limits.end())
      limit = std::max(limit, own->second);
  }
  if (threads == 0 || threads > 1024 || l.block.z > 64 || l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0 ||
      l.grid.x > INT32_MAX || l.grid.y > 65535 || l.grid.z > 65535) {
    machine().fail(cudaErrorInvalidConfiguration, "a launch beyond a GPU's limits");
    return;
  }
  if (l.shared_bytes > limit) {
    machine().fail(cudaErrorInvalidValue, "a launch with more shared memory than was asked for");
    return;
  }
  machine().count(&Counts::kernels);
  machine().push(s, {.work = [l, kernel = std::move(kernel)] { run_grid(l, kernel); },
                     .activity = machine().activity(Activity::kernel)});
}

cudaError_t enqueue(cudaStream_t s, std::function<void()> work) {
  if (const cudaError_t error = usable(s, "a library's kernel"); error != cudaSuccess) return error;
  machine().count(&Counts::kernels);
  machine().push(s, {.work = std::move(work), .activity = machine().activity(Activity::kernel)});
  return cudaSuccess;
}

}  // namespace emulation
