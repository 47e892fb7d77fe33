// Sums of squares in pairs of fp32: a value, and what its roundings have lost (Dekker 1971, Knuth's sum of two). For
// norms of gradients, which fp32 alone would get wrong in the third digit at 10^9 elements and fp64 halves the speed of.
//
// Error, of a sum that is settled after every 8 squares at most: squares and sums of two are exact, and what is added to
// the low part is rounded at 2^-24 of it, so that n additions leave less than n 2^-43 of the sum, and adding up two sums
// 2^-46. Ignored: what of a square lies below 2^-149 (elements under 10^-22); a square above 2^128 (elements over
// 1.8e19) makes the sum infinite. Needs a compiler that does not contract.
#pragma once

#include "kernels/cuda/math.hpp"

namespace sextant::cuda {

struct TwoFloat {
  float high, low;
};

SEXTANT_BOTH TwoFloat exact_sum(float a, float b) {
  const float sum = a + b, of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// So that `low` is below half of the last place of `high` again; nothing where an infinite sum has left none.
SEXTANT_BOTH void settle(TwoFloat& x) {
  const float sum = x.high + (x.low == x.low ? x.low : 0.0f), rest = x.low - (sum - x.high);
  x = {sum, rest == rest ? rest : 0.0f};
}
SEXTANT_BOTH void settle(double&) {}

// The same bits whichever of the two comes first.
SEXTANT_BOTH TwoFloat& operator+=(TwoFloat& a, TwoFloat b) {
  const TwoFloat sum = exact_sum(a.high, b.high);
  a = {sum.high, sum.low + (a.low + b.low)};
  settle(a);
  return a;
}

// To be settled after a few.
SEXTANT_BOTH void add_square(TwoFloat& sum, float x) {
  const float square = x * x;
  const TwoFloat whole = exact_sum(sum.high, square);
  sum = {whole.high, sum.low + (whole.low + fmaf(x, x, -square))};
}
SEXTANT_BOTH void add_square(double& sum, double x) { sum += x * x; }

// For one thread, once a sum.
SEXTANT_BOTH double in_fp64(TwoFloat x) { return static_cast<double>(x.high) + static_cast<double>(x.low); }
SEXTANT_BOTH double in_fp64(double x) { return x; }

}  // namespace sextant::cuda
