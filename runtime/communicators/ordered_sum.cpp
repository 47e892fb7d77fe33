#include "runtime/communicators/ordered_sum.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "core/base/error.hpp"

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

constexpr std::int64_t kBlock =
    1024;  // elements: accumulators stay in cache, inner loops run over contiguous memory

template <class T>
using Wide = decltype(widen(T{}));

// sum[i] = the reduction of the parts' elements [begin, begin + n).
template <class T, class Combine>
void reduce_block(std::span<const void* const> parts, std::int64_t begin, std::int64_t n, Wide<T>* sum,
                  Combine combine) {
  const auto part = [&](std::size_t p) { return static_cast<const T*>(parts[p]) + begin; };
  if (parts.size() <= 2) {
    const T *first = part(0), *last = part(parts.size() - 1);
    if (parts.size() == 1)
      for (std::int64_t i = 0; i < n; ++i) sum[i] = widen(first[i]);
    else
      for (std::int64_t i = 0; i < n; ++i) sum[i] = combine(widen(first[i]), widen(last[i]));
    return;
  }
  const std::size_t half = std::bit_floor(parts.size() - 1);
  std::array<Wide<T>, kBlock> rest;
  reduce_block<T>(parts.first(half), begin, n, sum, combine);
  reduce_block<T>(parts.subspan(half), begin, n, rest.data(), combine);
  for (std::int64_t i = 0; i < n; ++i) sum[i] = combine(sum[i], rest[static_cast<std::size_t>(i)]);
}

template <class T, class Combine>
void reduce(std::span<const void* const> parts, T* out, std::int64_t count, Combine combine) {
  std::array<Wide<T>, kBlock> sum;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    reduce_block<T>(parts, begin, n, sum.data(), combine);
    for (std::int64_t i = 0; i < n; ++i) out[begin + i] = narrow<T>(sum[static_cast<std::size_t>(i)]);
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
