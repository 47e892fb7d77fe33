// Element types on the GPU: conversions, 16-byte accesses, dispatch on the stored format, sums over a block in
// a fixed order, and a map over rows. For .cu files only.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>

#include <cuda_bf16.h>

#include "kernels/cuda/cuda_stream.hpp"
#include "kernels/cuda/math.hpp"
#include "kernels/cuda/two_float.hpp"
#include "kernels/tensor_view.hpp"

namespace sextant::cuda {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(Bfloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

template <class T, class From>
__device__ __forceinline__ T narrow(From x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(x)))};
  } else {
    return static_cast<T>(x);
  }
}

// W elements that are read or written together, 16 bytes at a time.
template <class T, int W>
struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Pack {
  T v[W];
};
template <int W, class T>
__device__ __forceinline__ Pack<T, W> read(const T* p) {
  return *reinterpret_cast<const Pack<T, W>*>(p);
}
template <int W, class T>
__device__ __forceinline__ void write(T* p, const Pack<T, W>& x) {
  *reinterpret_cast<Pack<T, W>*>(p) = x;
}

// f(pack) for what thread `self` of `threads` owns of a row, and for the elements beyond the last whole pack. U packs are on
// their way from memory at a time: a kernel that only reads has too few bytes under way otherwise.
template <int W, int U, class T, class F>
__device__ __forceinline__ void for_values(const T* row, std::int64_t cols, bool wide, std::int64_t self,
                                           std::int64_t threads, F&& f) {
  const std::int64_t whole = wide ? cols / W : 0;
  std::int64_t g = self;
  for (; g + (U - 1) * threads < whole; g += U * threads) {
    Pack<T, W> pack[U];
#pragma unroll
    for (int u = 0; u < U; ++u) pack[u] = read<W>(row + (g + u * threads) * W);
#pragma unroll
    for (int u = 0; u < U; ++u) f(pack[u]);
  }
  for (; g < whole; g += threads) f(read<W>(row + g * W));
  for (std::int64_t c = whole * W + self; c < cols; c += threads) f(read<1>(row + c));
}

// A matrix as a kernel sees it.
template <class T>
struct Rows {
  T* data;
  std::int64_t stride;
  __device__ __forceinline__ T* operator()(std::int64_t row) const { return data + row * stride; }
};
template <class T>
Rows<T> rows_of(const TensorView& x) {
  return {x.row<T>(), x.stride};
}

// Elements that a thread takes at once when every operand may be read 16 bytes at a time: that many of the
// narrowest type among them.
template <class... T>
inline constexpr int kWidthOf = static_cast<int>(16 / std::min({sizeof(T)...}));

// That many of the widest: where it is written, lanes of a warp leave no gaps between their 16 bytes.
template <class... T>
inline constexpr int kWidthOfWidest = static_cast<int>(16 / std::max({sizeof(T)...}));

inline bool aligned(const TensorView& x) {
  const std::int64_t element = size_bytes(x.dtype);
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && (x.rows <= 1 || x.stride * element % 16 == 0);
}
template <class... View>
bool all_aligned(const View&... views) {
  return (aligned(views) && ...);
}

template <class F>
decltype(auto) with_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::fp64:
      return f.template operator()<double>();
    case Dtype::fp32:
      return f.template operator()<float>();
    case Dtype::bf16:
      return f.template operator()<Bfloat16>();
    default:
      throw BackendError("GPU kernels have fp64, fp32 and bf16, not " + std::string(name(dtype)));
  }
}

inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

template <class A>
__device__ __forceinline__ A from_lane(A x, int offset) {
  return __shfl_xor_sync(0xffffffffu, x, offset);
}
__device__ __forceinline__ TwoFloat from_lane(TwoFloat x, int offset) {
  return {from_lane(x.high, offset), from_lane(x.low, offset)};
}

// Sum over a block of at most 1024 threads; every thread gets it. The order depends on the number of threads
// alone. Ends with a barrier, so that calls may follow each other.
template <class A>
__device__ __forceinline__ A block_sum(A value) {
  __shared__ A partial[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  for (int offset = 16; offset > 0; offset /= 2) value += from_lane(value, offset);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  value = lane < warps ? partial[lane] : A{};
  for (int offset = 16; offset > 0; offset /= 2) value += from_lane(value, offset);
  __syncthreads();
  return value;
}

// The same sum for a block that goes over many rows: one barrier in place of two, as sums take turns with two places.
// `turn`: 0 and 1 by turns.
template <class A>
__device__ __forceinline__ A block_sum_by_turns(A value, int turn) {
  __shared__ A partial[2][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  for (int offset = 16; offset > 0; offset /= 2) value += from_lane(value, offset);
  if (lane == 0) partial[turn][warp] = value;
  __syncthreads();  // whoever is past it has read the other place
  value = lane < warps ? partial[turn][lane] : A{};
  for (int offset = 16; offset > 0; offset /= 2) value += from_lane(value, offset);
  return value;
}

// A map over elements [begin, end) of every row. Op has kWidth and a member template element<W>(row, column)
// that works on W elements from a column that is a multiple of W.
template <class Op>
__global__ void __launch_bounds__(256)
    map_kernel(Op op, std::int64_t rows, std::int64_t begin, std::int64_t end, bool wide) {
  constexpr int W = Op::kWidth;
  const std::int64_t first = begin / W, last = (end + W - 1) / W;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y)
    for (std::int64_t group = first + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         group < last; group += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
      const std::int64_t column = group * W;
      if (wide && column >= begin && column + W <= end) {
        op.template element<W>(row, column);
      } else {
        for (int i = 0; i < W; ++i)
          if (column + i >= begin && column + i < end) op.template element<1>(row, column + i);
      }
    }
}

// `views`: all operands; they are taken as one row when none has gaps. `make` builds the Op.
template <class Op>
void map(const CudaStream& s, const Op& op, std::int64_t rows, std::int64_t begin, std::int64_t end,
         bool wide, const char* name) {
  if (rows <= 0 || end <= begin) return;
  const std::int64_t groups = (end + Op::kWidth - 1) / Op::kWidth - begin / Op::kWidth;
  const std::int64_t blocks = (groups + 255) / 256;
  const std::int64_t y = rows < 32768 ? rows : 32768;
  const std::int64_t limit = 4096 / (y < 4096 ? y : 4096);  // some waves of any chip; longer rows go round
  const std::int64_t x = blocks < limit ? blocks : (limit < 1 ? 1 : limit);
  map_kernel<Op><<<dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), 256, 0, s.stream>>>(
      op, rows, begin, end, wide);
  check_launch(name);
}

}  // namespace sextant::cuda
