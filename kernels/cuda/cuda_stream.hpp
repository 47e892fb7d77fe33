// What a NativeStream's handle is on a GPU: the stream, and memory that kernels on it may scribble on. Work on
// one stream runs in order, so one scratch serves all its kernels. Made by the device (runtime/devices/cuda_device.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.hpp"
#include "kernels/fp8.hpp"
#include "kernels/native_stream.hpp"

struct CUstream_st;  // what a cudaStream_t points to

namespace sextant {

// An operand in fp8 whose codes, turned, stand in a stream's scratch until anything else takes of it.
struct Fp8Kept {
  const void* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
  Fp8 format = Fp8::none;
  bool operator==(const Fp8Kept&) const = default;
};

struct CudaStream {
  CUstream_st* stream = nullptr;
  int device = 0;
  // Lent by a plan, or else grown when a kernel first needs more and freed by the owner.
  void* scratch = nullptr;
  bool lent = false;
  std::int64_t scratch_bytes = 0;
  std::int64_t* scratch_total = nullptr;  // of the device, for its account; may be null
  Fp8Kept fp8_kept = {};
  bool capturing = false;  // kernels become part of a program: nothing may wait or allocate
  bool rehearsal = false;  // results do not count: libraries may try what is fastest
};

namespace cuda {

// Throws BackendError with the name of the call; the status is a cudaError_t.
void check(int status, const char* call);
// The stream of a call; none is our own mistake, and so is a CPU's.
CudaStream& stream_of(NativeStream);
// At least this many bytes, aligned to 256; what it held before may be gone. Throws BackendError beyond what was lent.
void* scratch(CudaStream&, std::int64_t bytes);
void release_scratch(CudaStream&);
// Throws BackendError where a block of this GPU has less shared memory than a kernel takes for heads of `d` channels.
void require_shared_memory(const CudaStream&, std::size_t bytes, const char* kernel, int d, Dtype);

}  // namespace cuda
}  // namespace sextant
