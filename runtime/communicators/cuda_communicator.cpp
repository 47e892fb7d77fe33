// The communicator of ranks that share one GPU.
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/kernels.hpp"
#include "runtime/communicators/make_communicator.hpp"
#include "runtime/communicators/shared_device_communicator.hpp"

namespace sextant {
namespace {

using cuda::check;

struct CudaOps {
  using Mark = cudaEvent_t;
  int ordinal = 0;

  void activate() const { check(cudaSetDevice(ordinal), "cudaSetDevice"); }
  static bool on_host(NativeStream stream) { return stream.handle == nullptr; }
  Mark make_mark() const {
    activate();
    Mark mark = nullptr;
    check(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming), "cudaEventCreate");
    return mark;
  }
  static void destroy_mark(Mark mark) { cudaEventDestroy(mark); }
  static void record(Mark mark, NativeStream stream) {
    check(cudaEventRecord(mark, cuda::stream_of(stream).stream), "cudaEventRecord");
  }
  static void wait(NativeStream stream, Mark mark) {
    check(cudaStreamWaitEvent(cuda::stream_of(stream).stream, mark, 0), "cudaStreamWaitEvent");
  }
  static void copy(NativeStream stream, void* to, const void* from, std::int64_t bytes) {
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                            cuda::stream_of(stream).stream),
            "cudaMemcpyAsync");
  }
  static void reduce(NativeStream stream, std::span<const void* const> parts, void* out, std::int64_t count,
                     Dtype dtype, bool maximum) {
    if (count > 0) cuda::reduce_in_order(parts, out, count, dtype, maximum, stream);
  }
  void* allocate(std::int64_t bytes) const {
    activate();
    void* data = nullptr;
    check(cudaMalloc(&data, static_cast<std::size_t>(bytes)), "cudaMalloc of a collective's scratch");
    return data;
  }
  static void release(void* data) { cudaFree(data); }
};

}  // namespace

void share_cuda_device(std::span<std::unique_ptr<Communicator>> world, int ordinal) {
  share_device(world, CudaOps{ordinal});
}

}  // namespace sextant
