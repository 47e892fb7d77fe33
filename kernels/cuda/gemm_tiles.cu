// The GEMM without a library: for shapes and alignments that cuBLASLt refuses, and to hold it against.
// One accumulator an element in the accumulator's format, ascending k.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"

namespace sextant::cuda {
namespace {

constexpr int kGemmTile = 32, kGemmRows = 8;  // a block of 32 x 8 threads makes 32 x 32 elements

struct GemmExtents {
  std::int64_t m, n, k, lda, ldb, ldc;
  bool transpose_a, transpose_b, accumulate;
};

template <class T, class C>
__global__ void __launch_bounds__(kGemmTile* kGemmRows)
    gemm_kernel(GemmExtents e, const T* a, const T* b, C* c) {
  using A = Accumulator<T>;
  __shared__ A as[kGemmTile][kGemmTile + 1], bs[kGemmTile][kGemmTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kGemmTile,
                     column0 = static_cast<std::int64_t>(blockIdx.x) * kGemmTile;
  A sum[kGemmTile / kGemmRows] = {};
  for (std::int64_t k0 = 0; k0 < e.k; k0 += kGemmTile) {
    for (int i = y; i < kGemmTile; i += kGemmRows) {
      // The fast index of memory runs along x.
      if (e.transpose_a) {
        const std::int64_t row = row0 + x, k = k0 + i;
        as[x][i] = row < e.m && k < e.k ? widen(a[k * e.lda + row]) : A(0);
      } else {
        const std::int64_t row = row0 + i, k = k0 + x;
        as[i][x] = row < e.m && k < e.k ? widen(a[row * e.lda + k]) : A(0);
      }
      if (e.transpose_b) {
        const std::int64_t column = column0 + i, k = k0 + x;
        bs[x][i] = column < e.n && k < e.k ? widen(b[column * e.ldb + k]) : A(0);
      } else {
        const std::int64_t column = column0 + x, k = k0 + i;
        bs[i][x] = column < e.n && k < e.k ? widen(b[k * e.ldb + column]) : A(0);
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kGemmTile; ++k)
#pragma unroll
      for (int i = 0; i < kGemmTile / kGemmRows; ++i) sum[i] += as[y + i * kGemmRows][k] * bs[k][x];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kGemmTile / kGemmRows; ++i) {
    const std::int64_t row = row0 + y + i * kGemmRows, column = column0 + x;
    if (row >= e.m || column >= e.n) continue;
    C& out = c[row * e.ldc + column];
    out = narrow<C>(e.accumulate ? static_cast<A>(widen(out)) + sum[i] : sum[i]);
  }
}

}  // namespace

void gemm_tiles(const GemmArgs& g) {
  const GemmExtents e{g.c.rows,      g.c.cols,      g.transpose_a ? g.a.rows : g.a.cols,
                      g.a.stride,    g.b.stride,    g.c.stride,
                      g.transpose_a, g.transpose_b, g.accumulate};
  if (e.m == 0 || e.n == 0) return;
  const std::int64_t rows = (e.m + kGemmTile - 1) / kGemmTile;
  SEXTANT_CHECK(rows <= 65535, "gemm tiles: too many rows");
  const dim3 grid(static_cast<unsigned>((e.n + kGemmTile - 1) / kGemmTile), static_cast<unsigned>(rows)),
      block(kGemmTile, kGemmRows);
  const cudaStream_t stream = stream_of(g.stream).stream;
  with_type(g.a.dtype, [&]<class T>() {
    if (g.c.dtype == g.a.dtype)
      gemm_kernel<T, T><<<grid, block, 0, stream>>>(e, g.a.row<T>(), g.b.row<T>(), g.c.row<T>());
    else
      gemm_kernel<T, Accumulator<T>>
          <<<grid, block, 0, stream>>>(e, g.a.row<T>(), g.b.row<T>(), g.c.row<Accumulator<T>>());
  });
  check_launch("gemm tiles");
}

}  // namespace sextant::cuda
