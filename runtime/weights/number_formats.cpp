#include "runtime/weights/number_formats.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/base/error.hpp"

namespace sextant {
namespace {

// A 16-bit format: sign, exponent of E bits, M bits of fraction.
template <int E, int M>
struct Narrow {
  static constexpr int kBias = (1 << (E - 1)) - 1;
  static constexpr std::uint64_t kInfinity = ((1ULL << E) - 1) << M;

  static double widen(std::uint16_t bits) {
    const int exponent = bits >> M & ((1 << E) - 1);
    const auto fraction = static_cast<double>(bits & ((1u << M) - 1));
    double value = 0;
    if (exponent == (1 << E) - 1) {
      value = fraction == 0 ? HUGE_VAL : std::nan("");
    } else {
      const double significand = exponent == 0 ? fraction : fraction + static_cast<double>(1u << M);
      value = std::ldexp(significand, (exponent == 0 ? 1 : exponent) - kBias - M);
    }
    return bits >> 15 ? -value : value;
  }

  static std::uint16_t narrow(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t sign = bits >> 63 << 15, fraction = bits & ((1ULL << 52) - 1);
    const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
    if (exponent == 0x7ff)
      return static_cast<std::uint16_t>(sign | kInfinity | (fraction ? 1ULL << (M - 1) : 0));
    const int wanted = exponent - 1023 + kBias;
    if (wanted >= (1 << E) - 1) return static_cast<std::uint16_t>(sign | kInfinity);
    // The number as an integer whose bits above `shift` are those to keep; a carry out of the fraction moves the exponent
    // up, which is what rounding up means.
    std::uint64_t whole = static_cast<std::uint64_t>(wanted) << 52 | fraction;
    int shift = 52 - M;
    if (wanted <= 0) {
      whole = exponent == 0 ? 0 : fraction | 1ULL << 52;
      shift += 1 - wanted;
      if (shift > 54) return static_cast<std::uint16_t>(sign);
    }
    const std::uint64_t rest = whole & ((1ULL << shift) - 1), half = 1ULL << (shift - 1);
    std::uint64_t kept = whole >> shift;
    if (rest > half || (rest == half && (kept & 1))) ++kept;
    return static_cast<std::uint16_t>(sign | kept);
  }
};
using Half = Narrow<5, 10>;
using Brain = Narrow<8, 7>;

template <class T, class F>
void decode(std::span<const std::byte> from, std::span<double> to, F&& widen) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    T bits;
    std::memcpy(&bits, from.data() + i * sizeof(T), sizeof(T));
    to[i] = widen(bits);
  }
}

template <class T, class F>
void encode_number(std::span<const double> from, std::span<std::byte> to, F&& narrow) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const T bits = narrow(from[i]);
    std::memcpy(to.data() + i * sizeof(T), &bits, sizeof(T));
  }
}

}  // namespace

bool is_floating(StoredType type) {
  return type == StoredType::f64 || type == StoredType::f32 || type == StoredType::f16 ||
         type == StoredType::bf16;
}

void decode_numbers(StoredType type, std::span<const std::byte> from, std::span<double> to) {
  SEXTANT_CHECK(from.size() == to.size() * static_cast<std::size_t>(size_bytes(type)), "numbers and bytes");
  switch (type) {
    case StoredType::f64:
      return decode<double>(from, to, [](double x) { return x; });
    case StoredType::f32:
      return decode<float>(from, to, [](float x) { return static_cast<double>(x); });
    case StoredType::f16:
      return decode<std::uint16_t>(from, to, Half::widen);
    case StoredType::bf16:
      return decode<std::uint16_t>(from, to, [](std::uint16_t x) {
        return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16));
      });
    default:
      SEXTANT_CHECK(false, "not a floating-point format");
  }
}

void encode_numbers(StoredType type, std::span<const double> from, std::span<std::byte> to) {
  SEXTANT_CHECK(to.size() == from.size() * static_cast<std::size_t>(size_bytes(type)), "numbers and bytes");
  switch (type) {
    case StoredType::f64:
      return encode_number<double>(from, to, [](double x) { return x; });
    case StoredType::f32:
      return encode_number<float>(from, to, [](double x) { return static_cast<float>(x); });
    case StoredType::f16:
      return encode_number<std::uint16_t>(from, to, Half::narrow);
    case StoredType::bf16:
      return encode_number<std::uint16_t>(from, to, Brain::narrow);
    default:
      SEXTANT_CHECK(false, "not a floating-point format");
  }
}

}  // namespace sextant
