// Dots of rows, and what a norm makes of such sums once the ranks that hold a row have added theirs. One order of sums.
#include <cstdint>

#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"

namespace sextant::cuda {
namespace {

constexpr int kDotThreads = 256;

// out[row] = sum of a b, a block over a row. Both are read once.
template <class T>
__global__ void __launch_bounds__(kDotThreads)
    row_dots_kernel(Rows<T> a, Rows<T> b, Accumulator<T>* out, std::int64_t rows, std::int64_t cols,
                    bool wide) {
  using A = Accumulator<T>;
  int turn = 0;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x, turn ^= 1) {
    A sum = 0;
    for_columns<kWidthOf<T>>(cols, wide, [&]<int N>(std::int64_t c) {
      const auto x = read<N>(a(row) + c), y = read<N>(b(row) + c);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += widen(x.v[i]) * widen(y.v[i]);
    });
    sum = block_sum_by_turns(sum, turn);
    if (threadIdx.x == 0) out[row] = sum;
  }
}

template <class A>
struct InverseRms {
  static constexpr int kWidth = kWidthOf<A>;
  A *x, width, eps;
  template <int W>
  __device__ void element(std::int64_t, std::int64_t c) const {
    auto y = read<W>(x + c);
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = A(1) / root(y.v[i] / width + eps);
    write(x + c, y);
  }
};

}  // namespace

void row_dots(const RowDotsArgs& g) {
  same_extents(g.a, g.b, "dots of rows: extents disagree");
  SEXTANT_CHECK(g.out.cols == g.a.rows, "dots of rows: extents disagree");
  if (g.a.rows == 0) return;
  with_type(g.a.dtype, [&]<class T>() {
    row_dots_kernel<T><<<row_blocks(g.a.rows), kDotThreads, 0, stream_of(g.stream).stream>>>(
        rows_of<T>(g.a), rows_of<T>(g.b), g.out.row<Accumulator<T>>(), g.a.rows, g.a.cols,
        all_aligned(g.a, g.b));
    check_launch("dots of rows");
  });
}

void inverse_rms(const InverseRmsArgs& g) {
  const auto launch = [&]<class A>() {
    map(stream_of(g.stream), InverseRms<A>{g.x.row<A>(), static_cast<A>(g.width), static_cast<A>(g.eps)}, 1,
        0, g.x.cols, aligned(g.x), "inverse rms");
  };
  g.x.dtype == Dtype::fp64 ? launch.template operator()<double>() : launch.template operator()<float>();
}

}  // namespace sextant::cuda
