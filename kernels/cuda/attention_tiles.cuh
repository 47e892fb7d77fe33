// What the passes of our own attention share: tiles in shared memory, sums over a warp, extents. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"

namespace sextant::cuda {

inline constexpr int kTile = 32;  // queries and keys of a tile: a lane each
inline constexpr int kWarps = 4;
inline constexpr int kPerWarp = kTile / kWarps;  // rows of a tile that a warp holds
inline constexpr int kThreads = 32 * kWarps;

inline constexpr std::int32_t kNoQuery = INT32_MIN, kNoKey = INT32_MAX;  // see nothing, seen by nobody

// Positions of the keys that a query sees, from one to the other.
struct Seen {
  std::int32_t first, last;
  __device__ __forceinline__ bool operator()(std::int32_t key) const { return key >= first && key <= last; }
};

struct Extents {
  int batch, heads, kv_heads, d;
  std::int64_t seq_q, seq_k, per_segment;
  const std::int32_t *q_positions, *k_positions;
  const std::int32_t* documents;  // of each query, [batch][seq_q]; nullptr: one a sequence
  std::int32_t window;            // 0: none
  __device__ std::int64_t key_row(std::int64_t b, std::int64_t j) const {
    return (j / per_segment * batch + b) * per_segment + j % per_segment;
  }
  // From the beginning of its document, or of its window where that is later, to itself.
  __device__ Seen seen(std::int64_t b, std::int64_t i) const {
    if (i >= seq_q) return {kNoKey, kNoQuery};
    const std::int32_t last = q_positions[i];
    std::int32_t first = documents ? documents[b * seq_q + i] : 0;
    if (window > 0 && last - window + 1 > first) first = last - window + 1;
    return {first, last};
  }
  __device__ std::int32_t key(std::int64_t j) const { return j < seq_k ? k_positions[j] : kNoKey; }
};

// ALiBi's slope of a head; 0 without.
template <class A>
__device__ __forceinline__ A slope_of(const A* slopes, int head) {
  return slopes ? slopes[head] : A(0);
}

// [kTile][stride] in shared memory, columns beyond d and rows beyond the last zero. A stride of one more than a
// multiple of 32 lets the lanes of a warp read a column without conflicts.
template <class A, int kColumns>
struct Tile {
  static constexpr int kStride = kColumns + 1;
  static constexpr int kElements = kTile * kStride;
  A* data;
  __device__ __forceinline__ A& operator()(int row, int column) const { return data[row * kStride + column]; }
};

// row(i) gives the address of tile row i, or nullptr.
template <class T, int kColumns, class Row>
__device__ __forceinline__ void load_tile(const Tile<Accumulator<T>, kColumns>& tile, int d,
                                          Accumulator<T> factor, Row&& row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = warp; i < kTile; i += kWarps) {
    const T* from = row(i);
    for (int c = lane; c < kColumns; c += 32) tile(i, c) = from && c < d ? widen(from[c]) * factor : 0;
  }
}

__device__ __forceinline__ std::int32_t warp_max(std::int32_t x) { return __reduce_max_sync(0xffffffffu, x); }
__device__ __forceinline__ std::int32_t warp_min(std::int32_t x) { return __reduce_min_sync(0xffffffffu, x); }
// The last key of a warp's; what is none comes before all.
__device__ __forceinline__ std::int32_t warp_last_key(std::int32_t key) {
  return warp_max(key == kNoKey ? kNoQuery : key);
}
template <class A>
__device__ __forceinline__ A warp_sum(A x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ __forceinline__ Seen from_query(const Seen& seen, int lane) {
  return {__shfl_sync(0xffffffffu, seen.first, lane), __shfl_sync(0xffffffffu, seen.last, lane)};
}
template <class A>
__device__ __forceinline__ A warp_highest(A x) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, x, offset);
    x = other > x ? other : x;
  }
  return x;
}

inline Extents extents_of(const AttentionShape& s, const TensorView& q, const TensorView& k,
                          const TensorView& v, const TensorView& out) {
  SEXTANT_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.segments > 0 && s.seq_k() % s.segments == 0,
                "attention: heads or segments do not divide");
  SEXTANT_CHECK(
      s.q_documents.empty() || static_cast<std::int64_t>(s.q_documents.size()) == s.batch * s.seq_q(),
      "attention: every query is of one document");
  SEXTANT_CHECK(!s.slopes.data || (s.slopes.rows == 1 && s.slopes.cols == s.heads),
                "attention: every head has a slope");
  const std::int64_t q_cols = static_cast<std::int64_t>(s.heads) * s.head_dim;
  const std::int64_t k_cols = static_cast<std::int64_t>(s.kv_heads) * s.head_dim;
  SEXTANT_CHECK(q.rows == s.batch * s.seq_q() && out.rows == q.rows && k.rows == s.batch * s.seq_k() &&
                    v.rows == k.rows && q.cols == q_cols && out.cols == q_cols && k.cols == k_cols &&
                    v.cols == k_cols,
                "attention: extents disagree");
  return {s.batch,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.seq_q(),
          s.seq_k(),
          s.seq_k() / s.segments,
          s.q_positions.data(),
          s.k_positions.data(),
          s.q_documents.empty() ? nullptr : s.q_documents.data(),
          s.window};
}

template <class A>
const A* slopes_of(const AttentionShape& s) {
  return s.slopes.data ? s.slopes.row<A>() : nullptr;
}

inline dim3 grid(std::int64_t seq, int heads, int batch) {
  return {static_cast<unsigned>((seq + kTile - 1) / kTile), static_cast<unsigned>(heads),
          static_cast<unsigned>(batch)};
}

// Calls f.template operator()<T, columns>() with the least number of columns that holds a head.
template <class F>
void with_columns(const TensorView& q, int d, F&& f) {
  with_type(q.dtype, [&]<class T>() {
    if (d <= 64) return f.template operator()<T, 64>();
    if (d <= 128) return f.template operator()<T, 128>();
    if (d > 256) throw BackendError("own attention has heads of at most 256 channels");
    return f.template operator()<T, 256>();
  });
}

template <class Kernel>
std::size_t allow_shared(Kernel kernel, const TensorView& q, int d, const CudaStream& stream,
                         std::size_t bytes) {
  if (bytes <= 48 * 1024) return bytes;
  require_shared_memory(stream, bytes, "own attention", d, q.dtype);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        "attention: shared memory");
  return bytes;
}

}  // namespace sextant::cuda
