// How long does one GEMM C[m,n] = A[m,k] B[k,n] take? Tiles, waves over the multiprocessors, depth,
// alignment and memory traffic. Ignores power limits, split-K kernels and what is left in the cache.
#pragma once

#include <cstdint>

#include "core/base/dtype.hpp"
#include "cost_models/cost_model.hpp"
#include "cost_models/machine.hpp"

namespace sextant {

struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  int alignment = 16;  // largest power of two, at most 16, that divides both extents of the weight matrix
  Dtype dtype = Dtype::bf16;
  bool operator==(const Gemm&) const = default;
};

// The alignment of a weight of this shape. Token counts do not matter: they are never a leading dimension.
int alignment_of(std::int64_t rows, std::int64_t columns);

// bonus: gain of a vendor container's tuned kernel choice over the library's default, 1 = none.
OpCost price_gemm(const Gemm&, const Machine&, double bonus = 1.0);

// Achieved over dense peak, (0, 1).
double efficiency(const Gemm&, const Machine&, double bonus = 1.0);

}  // namespace sextant
