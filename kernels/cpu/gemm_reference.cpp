// The matrix product whose bits depend on nothing but its operands: packed panels, one fp64 accumulator an
// element, ascending k. Products of fp32 and bf16 are exact in fp64, so not even a fused multiply-add changes
// them. Rows of c are cut among threads, which does not touch any sum. (Twenty training steps of the `deep`
// reference case end 2.5e-6 from float64 with it, 2e-5 with oneDNN's fp32 sums, which take a third of the time;
// layouts_test shows where the difference comes from.)
#include <algorithm>
#include <vector>

#include <oneapi/tbb/task_arena.h>

#include "kernels/cpu/element.hpp"
#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/tile_gemm.hpp"
#include "kernels/parallel.hpp"

namespace sextant::cpu {
namespace {

constexpr std::int64_t kRowBlock = 48;  // rows of c that one task takes, a multiple of kTileRows

struct Extents {
  std::int64_t m, n, k;
};

Extents extents_of(const GemmArgs& g) {
  const std::int64_t m = g.transpose_a ? g.a.cols : g.a.rows, k = g.transpose_a ? g.a.rows : g.a.cols;
  const std::int64_t kb = g.transpose_b ? g.b.cols : g.b.rows, n = g.transpose_b ? g.b.rows : g.b.cols;
  SEXTANT_CHECK(k == kb && g.c.rows == m && g.c.cols == n, "gemm: extents disagree");
  SEXTANT_CHECK(g.a.dtype == g.b.dtype, "gemm: operands of different formats");
  return {m, n, k};
}

// Columns [first, first + width) of op(b) as a k-by-padded panel, zero beyond the matrix.
template <class T, class A>
void pack_right(const GemmArgs& g, std::int64_t k, std::int64_t first, std::int64_t width,
                std::int64_t padded, A* panel) {
  const T* b = g.b.row<T>();
  for (std::int64_t p = 0; p < k; ++p) {
    A* row = panel + p * padded;
    if (g.transpose_b)
      for (std::int64_t j = 0; j < width; ++j) row[j] = load(b[(first + j) * g.b.stride + p]);
    else
      for (std::int64_t j = 0; j < width; ++j) row[j] = load(b[p * g.b.stride + first + j]);
    std::fill(row + width, row + padded, A{0});
  }
}

// Rows [first, first + height) of op(a), k after k, so that the inner loop walks both panels forward.
template <class T, class A>
void pack_left(const GemmArgs& g, std::int64_t k, std::int64_t first, std::int64_t height, A* panel) {
  const T* a = g.a.row<T>();
  if (g.transpose_a) {
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t i = 0; i < height; ++i) panel[p * height + i] = load(a[p * g.a.stride + first + i]);
  } else {
    for (std::int64_t i = 0; i < height; ++i)
      for (std::int64_t p = 0; p < k; ++p) panel[p * height + i] = load(a[(first + i) * g.a.stride + p]);
  }
}

template <class A, class C>
void put(const A* tile, std::int64_t rows, std::int64_t width, std::int64_t padded, C* c, std::int64_t ldc,
         bool add) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < width; ++j) {
      C& out = c[i * ldc + j];
      out = store<C>(add ? static_cast<A>(load(out)) + tile[i * padded + j] : tile[i * padded + j]);
    }
}

template <class T, class C>
void run(const GemmArgs& g) {
  using A = double;
  const Extents e = extents_of(g);
  constexpr std::int64_t kPanel = kTileColumns<A>;
  std::vector<A> right(static_cast<std::size_t>((e.n + kPanel - 1) / kPanel * kPanel * e.k));
  for (std::int64_t j = 0; j < e.n; j += kPanel)
    pack_right<T, A>(g, e.k, j, std::min(kPanel, e.n - j), kPanel, right.data() + j * e.k);

  const auto row_block = [&](std::int64_t block) {
    const std::int64_t first = block * kRowBlock, rows = std::min(kRowBlock, e.m - first);
    std::vector<A> left(static_cast<std::size_t>(rows * e.k));
    pack_left<T, A>(g, e.k, first, rows, left.data());
    A tile[kRowBlock * kPanel];
    for (std::int64_t j = 0; j < e.n; j += kPanel) {
      tile_gemm<A>(rows, kPanel, e.k, {left.data(), 1, rows}, right.data() + j * e.k, kPanel, tile, kPanel,
                   false);
      put(tile, rows, std::min(kPanel, e.n - j), kPanel, g.c.row<C>(first) + j, g.c.stride, g.accumulate);
    }
  };
  const std::int64_t blocks = (e.m + kRowBlock - 1) / kRowBlock;
  if (g.threads <= 1) {
    for (std::int64_t b = 0; b < blocks; ++b) row_block(b);
  } else {
    tbb::task_arena(g.threads).execute([&] {
      parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) row_block(b);
      });
    });
  }
}

}  // namespace

void gemm_reference(const GemmArgs& g) {
  with_type(g.a.dtype, [&]<class T>() {
    if (g.c.dtype == g.a.dtype)
      run<T, T>(g);
    else
      run<T, Accumulator<T>>(g);
  });
}

}  // namespace sextant::cpu
