// The one CPU file compiled with contraction on: `sum += left * right` is a fused multiply-add wherever the
// machine has one, and there is nothing else in it that could be contracted.
#include "kernels/cpu/tile_gemm.hpp"

#include <cstring>

namespace sextant::cpu {
namespace {

template <class T>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};

// M rows and N vectors of columns, kept in registers over the whole of k.
template <class T, int M, int N>
inline void register_block(std::int64_t k_extent, StridedOperand<T> a, const T* b, std::int64_t ldb, T* c,
                           std::int64_t ldc, bool accumulate) {
  using Vector = typename VectorOf<T>::Type;
  constexpr std::int64_t w = kVectorWidth<T>;
  Vector sum[M][N] = {};
  for (std::int64_t k = 0; k < k_extent; ++k) {
    Vector right[N];
    for (int j = 0; j < N; ++j) std::memcpy(&right[j], b + k * ldb + j * w, sizeof(Vector));
    for (int i = 0; i < M; ++i) {
      const T left = a.data[i * a.row + k * a.col];
      for (int j = 0; j < N; ++j) sum[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < N; ++j) {
      T* out = c + i * ldc + j * w;
      if (accumulate) {
        Vector old;
        std::memcpy(&old, out, sizeof(Vector));
        sum[i][j] += old;
      }
      std::memcpy(out, &sum[i][j], sizeof(Vector));
    }
}

template <class T, int N>
inline void all_rows(std::int64_t m, std::int64_t k, StridedOperand<T> a, const T* b, std::int64_t ldb, T* c,
                     std::int64_t ldc, bool accumulate) {
  const auto from = [&](std::int64_t r) { return StridedOperand<T>{a.data + r * a.row, a.row, a.col}; };
  std::int64_t i = 0;
  for (; i + kTileRows <= m; i += kTileRows)
    register_block<T, kTileRows, N>(k, from(i), b, ldb, c + i * ldc, ldc, accumulate);
  for (; i + 2 <= m; i += 2) register_block<T, 2, N>(k, from(i), b, ldb, c + i * ldc, ldc, accumulate);
  for (; i < m; ++i) register_block<T, 1, N>(k, from(i), b, ldb, c + i * ldc, ldc, accumulate);
}

}  // namespace

template <class T>
void tile_gemm(std::int64_t m, std::int64_t n, std::int64_t k, StridedOperand<T> a, const T* b,
               std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate) {
  constexpr std::int64_t w = kVectorWidth<T>;
  std::int64_t j = 0;
  for (; j + 2 * w <= n; j += 2 * w) all_rows<T, 2>(m, k, a, b + j, ldb, c + j, ldc, accumulate);
  for (; j < n; j += w) all_rows<T, 1>(m, k, a, b + j, ldb, c + j, ldc, accumulate);
}

template void tile_gemm<float>(std::int64_t, std::int64_t, std::int64_t, StridedOperand<float>, const float*,
                               std::int64_t, float*, std::int64_t, bool);
template void tile_gemm<double>(std::int64_t, std::int64_t, std::int64_t, StridedOperand<double>,
                                const double*, std::int64_t, double*, std::int64_t, bool);

}  // namespace sextant::cpu
