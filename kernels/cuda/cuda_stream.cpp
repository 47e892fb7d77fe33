#include "kernels/cuda/cuda_stream.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant::cuda {

void check(int status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // so that an error that does not stick is not reported twice
  throw BackendError(fmt::format("{}: {}", call, cudaGetErrorString(static_cast<cudaError_t>(status))));
}

CudaStream& stream_of(NativeStream native) {
  SEXTANT_CHECK(native.handle != nullptr, "a kernel of the GPU is given its stream");
  return *static_cast<CudaStream*>(native.handle);
}

void* scratch(CudaStream& s, std::int64_t bytes) {
  s.fp8_kept = {};
  if (bytes <= s.scratch_bytes) return s.scratch;
  if (s.lent)
    throw BackendError(
        fmt::format("a kernel takes {} bytes of scratch, and its plan has {}", bytes, s.scratch_bytes));
  if (s.capturing) throw BackendError("a kernel needs more scratch than any before it, while it is captured");
  release_scratch(s);
  constexpr std::int64_t kStep = std::int64_t{1} << 20;
  const std::int64_t whole = (bytes + kStep - 1) / kStep * kStep;
  check(cudaMalloc(&s.scratch, static_cast<std::size_t>(whole)), "cudaMalloc of scratch");
  s.scratch_bytes = whole;
  if (s.scratch_total) *s.scratch_total += whole;
  return s.scratch;
}

void release_scratch(CudaStream& s) {
  s.fp8_kept = {};
  if (!s.scratch || s.lent) return;
  cudaStreamSynchronize(s.stream);
  cudaFree(s.scratch);
  if (s.scratch_total) *s.scratch_total -= s.scratch_bytes;
  s.scratch = nullptr;
  s.scratch_bytes = 0;
}

void require_shared_memory(const CudaStream& s, std::size_t bytes, const char* kernel, int d, Dtype dtype) {
  int most = 0;
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, s.device),
        "cudaDeviceGetAttribute");
  if (bytes > static_cast<std::size_t>(most))
    throw BackendError(fmt::format(
        "{} with heads of {} channels in {} takes {} KiB of shared memory a block, and this GPU has {}\n  an "
        "A100 "
        "and later data-centre GPUs have enough for heads of 256 in bf16 and fp32, and of 128 in fp64",
        kernel, d, name(dtype), bytes / 1024, most / 1024));
}

}  // namespace sextant::cuda
