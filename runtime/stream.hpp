// What a task gets from the stream it runs on: nothing on the CPU, a cudaStream_t on a GPU, the lane's clock
// on the virtual device.
#pragma once

namespace sextant {

struct NativeStream {
  void* handle = nullptr;
};

}  // namespace sextant
