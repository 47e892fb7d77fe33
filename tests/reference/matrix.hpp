// Memory for tests: a matrix that owns its elements, conversions to and from doubles, relative distances.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/tensor_view.hpp"

namespace sextant::testing {

class Matrix {
 public:
  Matrix() = default;
  Matrix(Dtype dtype, std::int64_t rows, std::int64_t cols)
      : storage_(static_cast<std::size_t>((rows * cols * size_bytes(dtype) + 7) / 8 + 8)),
        dtype_(dtype),
        rows_(rows),
        cols_(cols) {}
  Matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, std::span<const double> values)
      : Matrix(dtype, rows, cols) {
    TensorView source(const_cast<double*>(values.data()), Dtype::fp64, rows, cols);
    SEXTANT_CHECK(static_cast<std::int64_t>(values.size()) == rows * cols, "matrix of another size");
    cpu_kernels().cast({.source = source, .destination = view()});
  }
  // The owner's const-ness does not reach the view: tests hand views to kernels as inputs and outputs alike.
  TensorView view() const { return {const_cast<std::uint64_t*>(storage_.data()), dtype_, rows_, cols_}; }

 private:
  std::vector<std::uint64_t> storage_;
  Dtype dtype_ = Dtype::fp64;
  std::int64_t rows_ = 0, cols_ = 0;
};

inline std::vector<double> to_doubles(const TensorView& view) {
  std::vector<double> values(static_cast<std::size_t>(view.elements()));
  cpu_kernels().cast({.source = view, .destination = {values.data(), Dtype::fp64, view.rows, view.cols}});
  return values;
}

// |got - expected| / |expected|, Euclidean; infinite when sizes differ or anything is not finite, so that a
// comparison with a bound cannot pass by accident.
inline double relative_distance(std::span<const double> got, std::span<const double> expected) {
  if (got.size() != expected.size() || expected.empty()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  const double distance = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

}  // namespace sextant::testing
