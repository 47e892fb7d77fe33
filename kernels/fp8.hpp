// The two 8-bit floats of GEMMs, as NVIDIA's GPUs round to them (Micikevicius et al. 2022, "FP8 formats for deep
// learning"; cvt.rn.satfinite of PTX): to nearest even, to the largest finite value beyond it. And the scale of a whole
// tensor: a power of two, so that scaling rounds nothing and the same tensor has the same codes wherever it is cast.
//   e4m3  1 4 3 bits, bias 7, largest 448, no infinity
//   e5m2  1 5 2 bits, bias 15, largest 57344
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host_device.hpp"

namespace sextant {

// What an operand of a GEMM is rounded to right before it is multiplied.
enum class Fp8 : std::uint8_t { none, e4m3, e5m2 };

// Where the largest values of a matrix stand on a GPU, which spares a pass over what has not changed since they were looked
// for: for each of its parts, one under another, kWords sizes as bits of a bf16, the largest of which counts.
struct Fp8Largest {
  static constexpr int kWords = 256, kMostParts = 3;
  std::uint32_t* words = nullptr;  // parts * kWords; none: looked for anew and forgotten
  bool known = false;              // as they stand; or else they are looked for and written
  int parts = 1;
  std::int64_t rows[kMostParts] = {};  // of each part, where there are several
};

namespace fp8 {

// Bits of the fraction, and the exponent of the smallest normal number as a float's is stored.
SEXTANT_BOTH constexpr int fraction(Fp8 f) { return f == Fp8::e4m3 ? 3 : 2; }
SEXTANT_BOTH constexpr int least_exponent(Fp8 f) { return f == Fp8::e4m3 ? 127 - 6 : 127 - 14; }
SEXTANT_BOTH constexpr float largest(Fp8 f) { return f == Fp8::e4m3 ? 448.0f : 57344.0f; }
SEXTANT_BOTH constexpr int largest_exponent(Fp8 f) {
  return f == Fp8::e4m3 ? 8 : 15;
}  // both are 1.75 times it
inline constexpr std::uint8_t kNan = 0x7f;

SEXTANT_BOTH std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
SEXTANT_BOTH float float_of(std::uint32_t bits) {
  float x = 0;
  memcpy(&x, &bits, sizeof x);
  return x;
}

SEXTANT_BOTH std::uint8_t encode(float x, Fp8 format) {
  const std::uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
  const int f = fraction(format), least = least_exponent(format);
  const auto code = [&]() -> std::uint32_t {
    if (size > 0x7f800000u) return kNan;
    const std::uint32_t most = bits_of(largest(format));
    if (size >= most) return (most >> (23 - f)) - (static_cast<std::uint32_t>(least - 1) << f);
    if (static_cast<int>(size >> 23) >= least) {
      const std::uint32_t rounded = size + (1u << (22 - f)) - 1 + (size >> (23 - f) & 1u);
      return (rounded >> (23 - f)) - (static_cast<std::uint32_t>(least - 1) << f);
    }
    // Steps of the smallest subnormal number: that of a float of this size, whose addition rounds to even.
    const std::uint32_t steps = static_cast<std::uint32_t>(least - f + 23) << 23;
    return bits_of(float_of(size) + float_of(steps)) - steps;
  }();
  return static_cast<std::uint8_t>(sign | code);
}

SEXTANT_BOTH float decode(std::uint8_t code, Fp8 format) {
  const int f = fraction(format), least = least_exponent(format);
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24, size = code & 0x7fu;
  const std::uint32_t infinity = format == Fp8::e4m3 ? kNan : 0x7cu;
  if (size >= infinity)
    return float_of(sign | 0x7f800000u | (format == Fp8::e4m3 || size > infinity ? 0x400000u : 0u));
  if (size >> f == 0) {
    const float step = float_of(static_cast<std::uint32_t>(least - f) << 23);
    return float_of(sign | bits_of(static_cast<float>(size) * step));
  }
  return float_of(sign | ((size << (23 - f)) + (static_cast<std::uint32_t>(least - 1) << 23)));
}

// What a tensor is multiplied by before it is rounded, and its codes by when they are used.
struct Scale {
  float up = 1, down = 1;
};
// The largest power of two that takes the largest size among a tensor's values, given as a bf16 without its sign, to no
// more than the format's largest. A tensor with NaN or infinity is NaN throughout; one of zeros is as it is.
SEXTANT_BOTH Scale scale_of(std::uint32_t most, Fp8 format) {
  if (most == 0) return {1, 1};
  if (most >= 0x7f80u) return {1, float_of(0x7fc00000u)};
  const int stored = static_cast<int>(most >> 7);
  const bool beyond = (most & 0x7fu) > 0x60u;  // more than 1.75 of its power of two
  int power = largest_exponent(format) - ((stored == 0 ? 1 : stored) - 127) - (beyond && stored > 0 ? 1 : 0);
  if (power > 126) power = 126;  // what is left of subnormal numbers is not worth more
  return {float_of(static_cast<std::uint32_t>(127 + power) << 23),
          float_of(static_cast<std::uint32_t>(127 - power) << 23)};
}

}  // namespace fp8
}  // namespace sextant
