// What kernels over rows have in common: how many blocks, which columns are a thread's. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"

namespace sextant::cuda {

inline constexpr std::int64_t kMostBlocks = 1 << 16;

inline unsigned row_blocks(std::int64_t rows) {
  return static_cast<unsigned>(rows < kMostBlocks ? rows : kMostBlocks);
}

// f(pack of W, column) over the row's columns that this thread owns, then f(pack of 1, column) over the rest.
// The same thread owns the same columns in every call.
template <int W, class F>
__device__ __forceinline__ void for_columns(std::int64_t cols, bool wide, F&& f) {
  const std::int64_t whole = wide ? cols / W : 0;
  for (std::int64_t g = threadIdx.x; g < whole; g += blockDim.x) f.template operator()<W>(g * W);
  for (std::int64_t c = whole * W + threadIdx.x; c < cols; c += blockDim.x) f.template operator()<1>(c);
}

inline void same_extents(const TensorView& a, const TensorView& b, const char* what) {
  SEXTANT_CHECK(a.rows == b.rows && a.cols == b.cols, what);
}

}  // namespace sextant::cuda
