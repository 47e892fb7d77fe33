// What a kernel sees of memory: a row-major matrix somebody else owns. Rows are tokens (or weight rows) and
// lie `stride` elements apart; columns are contiguous. Vectors are one row. No ownership, no broadcasting.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.hpp"
#include "core/base/error.hpp"

namespace sextant {

// A brain float as stored; arithmetic happens in float.
struct Bfloat16 {
  std::uint16_t bits = 0;
  bool operator==(const Bfloat16&) const = default;
};

template <class T>
inline constexpr bool kHasDtype = false;
template <>
inline constexpr bool kHasDtype<double> = true;
template <>
inline constexpr bool kHasDtype<float> = true;
template <>
inline constexpr bool kHasDtype<Bfloat16> = true;

template <class T>
requires kHasDtype<T>
constexpr Dtype dtype_of() {
  if constexpr (sizeof(T) == 8) return Dtype::fp64;
  if constexpr (sizeof(T) == 4) return Dtype::fp32;
  return Dtype::bf16;
}

struct TensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::fp32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t stride = 0;  // elements from one row to the next, >= cols

  TensorView() = default;
  TensorView(void* memory, Dtype type, std::int64_t n_rows, std::int64_t n_cols)
      : data(memory), dtype(type), rows(n_rows), cols(n_cols), stride(n_cols) {}

  std::int64_t elements() const { return rows * cols; }
  std::int64_t bytes() const { return elements() * size_bytes(dtype); }
  bool contiguous() const { return stride == cols || rows <= 1; }

  // The address of a row; a wrong element type is our own mistake and is caught here.
  template <class T>
  T* row(std::int64_t r = 0) const {
    SEXTANT_CHECK(dtype == dtype_of<T>(), "tensor holds another element type");
    return static_cast<T*>(data) + r * stride;
  }

  TensorView row_range(std::int64_t first, std::int64_t count) const {
    TensorView part = *this;
    part.data = static_cast<std::byte*>(data) + first * stride * size_bytes(dtype);
    part.rows = count;
    return part;
  }
  TensorView column_range(std::int64_t first, std::int64_t count) const {
    TensorView part = *this;
    part.data = static_cast<std::byte*>(data) + first * size_bytes(dtype);
    part.cols = count;
    return part;
  }
};

// What sums, statistics and gradients of weights are kept in, for a given product format.
constexpr Dtype accumulator_of(Dtype dtype) { return dtype == Dtype::fp64 ? Dtype::fp64 : Dtype::fp32; }

}  // namespace sextant
