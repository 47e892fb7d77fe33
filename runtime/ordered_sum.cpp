#include "runtime/ordered_sum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "core/error.hpp"

namespace sextant {

namespace {

struct Bf16 {
  std::uint16_t bits;
};

float widen(float x) { return x; }
double widen(double x) { return x; }
float widen(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

template <class T, class Wide>
T narrow(Wide x) {
  return x;
}
// Round to nearest, ties to even; NaN stays NaN.
template <>
Bf16 narrow<Bf16, float>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// Blocked so that the accumulator stays in cache and the inner loops run over contiguous memory.
template <class T, class Combine>
void reduce(std::span<const void* const> parts, T* out, std::int64_t count, Combine combine) {
  using Wide = decltype(widen(T{}));
  constexpr std::int64_t kBlock = 1024;
  std::array<Wide, kBlock> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(parts.front()) + begin;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]);
    for (const void* part : parts.subspan(1)) {
      const T* x = static_cast<const T*>(part) + begin;
      for (std::int64_t i = 0; i < n; ++i) sum[i] = combine(sum[i], widen(x[i]));
    }
    for (std::int64_t i = 0; i < n; ++i) out[begin + i] = narrow<T>(sum[i]);
  }
}

template <class T>
void reduce(std::span<const void* const> parts, void* out, std::int64_t count, Reduction reduction) {
  if (reduction == Reduction::sum) {
    reduce(parts, static_cast<T*>(out), count, [](auto a, auto b) { return a + b; });
  } else {  // a NaN wins, so that no rank misses it
    reduce(parts, static_cast<T*>(out), count, [](auto a, auto b) { return a < b || b != b ? b : a; });
  }
}

}  // namespace

void reduce_in_order(std::span<const void* const> parts, void* out, std::int64_t count, Dtype dtype,
                     Reduction reduction) {
  if (count == 0) return;
  switch (dtype) {
    case Dtype::fp32:
      return reduce<float>(parts, out, count, reduction);
    case Dtype::fp64:
      return reduce<double>(parts, out, count, reduction);
    case Dtype::bf16:
      return reduce<Bf16>(parts, out, count, reduction);
    default:
      throw BackendError("CPU ranks reduce bf16, fp32 and fp64, not " + std::string(name(dtype)));
  }
}

}  // namespace sextant
