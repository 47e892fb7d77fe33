// Where a kernel is enqueued: nothing on the CPU, where it runs at once; a CudaStream on a GPU
// (kernels/cuda/cuda_stream.hpp); the lane's clock on the virtual device. What a task gets from the stream it
// runs on.
#pragma once

namespace sextant {

struct NativeStream {
  void* handle = nullptr;
};

}  // namespace sextant
