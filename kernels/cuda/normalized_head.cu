// A head whose rows are divided by their length (kernels/cpu/normalized_head.cpp): the lengths, columns of logits scaled by
// them, and the gradient's part along a row. All are bound by memory; a sum has one order.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/rows.cuh"

namespace sextant::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kPacks = 4;  // of a row on their way at a time, where it is only read

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    row_lengths_kernel(Rows<T> x, Accumulator<T>* inverse, std::int64_t rows, std::int64_t cols, bool wide) {
  using A = Accumulator<T>;
  constexpr A kShortest = A(1e-12);  // torch.nn.functional.normalize
  int turn = 0;
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x, turn ^= 1) {
    A squares = 0;
    for_values<kWidthOf<T>, kPacks>(x(r), cols, wide, threadIdx.x, blockDim.x, [&](const auto& pack) {
      for (const T v : pack.v) squares += widen(v) * widen(v);
    });
    const A length = root(block_sum_by_turns(squares, turn));
    if (threadIdx.x == 0) inverse[r] = A(1) / (length > kShortest ? length : kShortest);
  }
}

template <class T>
struct ScaleColumns {
  using A = Accumulator<T>;
  static constexpr int kWidth = kWidthOfWidest<T, A>;
  Rows<T> x;
  const A* factors;
  template <int W>
  __device__ void element(std::int64_t r, std::int64_t c) const {
    auto y = read<W>(x(r) + c);
    const auto f = read<W>(factors + c);
#pragma unroll
    for (int i = 0; i < W; ++i) y.v[i] = narrow<T>(widen(y.v[i]) * f.v[i]);
    write(x(r) + c, y);
  }
};

// dweight -= row (row . dweight) inverse^2: a block over a row, which it reads again from the cache.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    project_rows_kernel(Rows<T> weight, const Accumulator<T>* inverse, Rows<Accumulator<T>> dweight,
                        std::int64_t rows, std::int64_t cols, bool wide) {
  using A = Accumulator<T>;
  constexpr int W = kWidthOfWidest<T, A>;
  int turn = 0;
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x, turn ^= 1) {
    const T* const w = weight(r);
    A* const d = dweight(r);
    const A by_length = inverse[r];
    A along = 0;
    for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
      const auto row = read<N>(w + c);
      const auto gradient = read<N>(d + c);
#pragma unroll
      for (int i = 0; i < N; ++i) along += widen(row.v[i]) * by_length * gradient.v[i];
    });
    along = block_sum_by_turns(along, turn);
    for_columns<W>(cols, wide, [&]<int N>(std::int64_t c) {
      const auto row = read<N>(w + c);
      auto gradient = read<N>(d + c);
#pragma unroll
      for (int i = 0; i < N; ++i) gradient.v[i] -= widen(row.v[i]) * by_length * along;
      write(d + c, gradient);
    });
  }
}

}  // namespace

void row_lengths(const RowLengthsArgs& g) {
  SEXTANT_CHECK(g.inverse.rows == 1 && g.inverse.cols == g.x.rows, "row lengths: extents disagree");
  if (g.x.rows == 0) return;
  with_type(g.x.dtype, [&]<class T>() {
    row_lengths_kernel<T><<<row_blocks(g.x.rows), kRowThreads, 0, stream_of(g.stream).stream>>>(
        rows_of<T>(g.x), g.inverse.row<Accumulator<T>>(), g.x.rows, g.x.cols, aligned(g.x));
    check_launch("row lengths");
  });
}

void scale_columns(const ScaleColumnsArgs& g) {
  SEXTANT_CHECK(g.factors.rows == 1 && g.factors.cols == g.x.cols, "scaled columns: extents disagree");
  with_type(g.x.dtype, [&]<class T>() {
    map(stream_of(g.stream), ScaleColumns<T>{rows_of<T>(g.x), g.factors.row<Accumulator<T>>()}, g.x.rows, 0,
        g.x.cols, all_aligned(g.x, g.factors), "scaled columns");
  });
}

void project_rows(const ProjectRowsArgs& g) {
  same_extents(g.weight, g.dweight, "projected rows: extents disagree");
  SEXTANT_CHECK(g.inverse.rows == 1 && g.inverse.cols == g.weight.rows, "projected rows: extents disagree");
  if (g.weight.rows == 0) return;
  with_type(g.weight.dtype, [&]<class T>() {
    using A = Accumulator<T>;
    project_rows_kernel<T><<<row_blocks(g.weight.rows), kRowThreads, 0, stream_of(g.stream).stream>>>(
        rows_of<T>(g.weight), g.inverse.row<A>(), rows_of<A>(g.dweight), g.weight.rows, g.weight.cols,
        all_aligned(g.weight, g.dweight));
    check_launch("projected rows");
  });
}

}  // namespace sextant::cuda
