// Element types of the CPU kernels: conversions, dispatch on the stored format, and sums in a fixed order
// that still vectorise.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>

#include "kernels/tensor_view.hpp"

namespace sextant::cpu {

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline double load(double x) { return x; }
inline float load(float x) { return x; }
inline float load(Bfloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

template <class T, class From>
inline T store(From x) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    // Round to nearest even; a NaN keeps a payload bit, so that rounding cannot turn it into infinity.
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return Bfloat16{static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40u : rounded)};
  } else {
    return static_cast<T>(x);
  }
}

// Calls f.template operator()<T>() with the element type of `dtype`.
template <class F>
decltype(auto) with_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::fp64:
      return f.template operator()<double>();
    case Dtype::fp32:
      return f.template operator()<float>();
    case Dtype::bf16:
      return f.template operator()<Bfloat16>();
    default:
      throw BackendError(fmt::format("CPU kernels have no {}", name(dtype)));
  }
}

// One rounding where the machine has a fused multiply-add, two elsewhere; never left to the compiler, which
// is told not to contract (-ffp-contract=off).
template <class T>
inline T multiply_add(T a, T b, T c) {
#ifdef __FMA__
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

// Sum of term(0) .. term(n-1): kLanes interleaved partial sums, added pairwise at the end. The order depends
// on n alone.
inline constexpr int kLanes = 16;
template <class Sum, class Term>
inline Sum sum_lanes(std::int64_t n, Term&& term) {
  Sum lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += static_cast<Sum>(term(i + l));
  const int rest = static_cast<int>(n % kLanes);
  for (int l = 0; l < rest; ++l) lanes[l] += static_cast<Sum>(term(i + l));
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

// Maximum, which has no order; as many lanes as keep it in vectors. NaN is passed over.
template <class Value, class Term>
inline Value max_lanes(std::int64_t n, Value lowest, Term&& term) {
  constexpr int kWide = 4 * kLanes;
  Value lanes[kWide];
  for (int l = 0; l < kWide; ++l) lanes[l] = lowest;
  std::int64_t i = 0;
  for (; i + kWide <= n; i += kWide)
    for (int l = 0; l < kWide; ++l) {
      const Value x = term(i + l);
      lanes[l] = x > lanes[l] ? x : lanes[l];
    }
  const int rest = static_cast<int>(n % kWide);
  for (int l = 0; l < rest; ++l) {
    const Value x = term(i + l);
    lanes[l] = x > lanes[l] ? x : lanes[l];
  }
  for (int l = 0; l < kWide; ++l) lowest = lanes[l] > lowest ? lanes[l] : lowest;
  return lowest;
}

// exp in the accumulator's precision, the same bits at every position of a loop (libm's scalar call and a
// vector library's differ, so mixing them would make results depend on alignment).
// fp32: Cephes expf (S. Moshier): reduction by ln 2 in two parts, degree-5 polynomial; relative error below
// 2e-7. Results below the smallest normal number become 0, above the largest become infinity.
inline double exponential(double x) { return std::exp(x); }
inline float exponential(float x) {
  constexpr float kLowest = -87.33654f, kHighest = 88.72283f;
  const float clamped = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = multiply_add(clamped, 1.44269504088896341f, kRound) - kRound;
  float r = multiply_add(n, -0.693359375f, clamped);
  r = multiply_add(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = multiply_add(p, r, 1.3981999507e-3f);
  p = multiply_add(p, r, 8.3334519073e-3f);
  p = multiply_add(p, r, 4.1665795894e-2f);
  p = multiply_add(p, r, 1.6666665459e-1f);
  p = multiply_add(p, r, 5.0000001201e-1f);
  p = multiply_add(p, r * r, r) + 1.0f;
  // n reaches 128 at the top, one more than an exponent holds: scale in two steps.
  const auto whole = static_cast<std::int32_t>(n);
  const std::int32_t half = whole >> 1;
  const auto first = std::bit_cast<float>((half + 127) << 23);
  const auto second = std::bit_cast<float>((whole - half + 127) << 23);
  float result = p * first * second;
  result = x < kLowest ? 0.0f : result;
  result = x > kHighest ? HUGE_VALF : result;
  return x != x ? x : result;
}

// Sum of exp(x[i] - shift). Exponentials go through a small buffer: a plain loop vectorises, one inside the
// lanes of a sum does not.
template <class T>
inline Accumulator<T> sum_exponentials(const T* x, std::int64_t n, Accumulator<T> shift) {
  using A = Accumulator<T>;
  constexpr std::int64_t kBlock = 256;
  A buffer[kBlock], sum{0};
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t count = n - first < kBlock ? n - first : kBlock;
    for (std::int64_t i = 0; i < count; ++i) buffer[i] = exponential(load(x[first + i]) - shift);
    sum += sum_lanes<A>(count, [&](std::int64_t i) { return buffer[i]; });
  }
  return sum;
}

}  // namespace sextant::cpu
