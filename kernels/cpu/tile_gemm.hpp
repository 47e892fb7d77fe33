// The inner loop under the reference matrix product and the attention tiles: c (+)= a * b on small pieces.
// Every element is summed in ascending k with one accumulator, so its bits do not depend on how a product is
// cut into tiles. Columns must be padded to whole vectors by the caller.
#pragma once

#include <cstdint>

namespace sextant::cpu {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
inline constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
constexpr std::int64_t padded_columns(std::int64_t n) {
  return (n + kVectorWidth<T> - 1) / kVectorWidth<T> * kVectorWidth<T>;
}

inline constexpr int kTileRows = 6;
template <class T>
inline constexpr int kTileColumns = 2 * kVectorWidth<T>;

// A left operand with free strides: element (i, k) is data[i * row + k * col].
template <class T>
struct StridedOperand {
  const T* data;
  std::int64_t row, col;
};

// c[m, n] (+)= a[m, k] * b[k, n], T float or double, n a multiple of kVectorWidth<T>.
template <class T>
void tile_gemm(std::int64_t m, std::int64_t n, std::int64_t k, StridedOperand<T> a, const T* b,
               std::int64_t ldb, T* c, std::int64_t ldc, bool accumulate);

}  // namespace sextant::cpu
