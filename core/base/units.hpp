// Quantities that cross rooms. Each is an explicit type, so that seconds never meet bytes by accident; `.v`
// is read only at the edges (Eigen, printf, JSON). G = 1e9 for rates, Gi = 2^30 for memory.
#pragma once

#include <compare>
#include <cstdint>

namespace sextant {

// A quantity with its own arithmetic: sums of equals, scaling by a plain number, ratios as plain numbers.
template <class Tag, class Rep>
struct Quantity {
  Rep v{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep value) : v(value) {}
  friend constexpr auto operator<=>(const Quantity&, const Quantity&) = default;
  constexpr Quantity& operator+=(Quantity o) {
    v += o.v;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    v -= o.v;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.v + b.v); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.v - b.v); }
  friend constexpr Quantity operator*(Quantity a, Rep s) { return Quantity(a.v * s); }
  friend constexpr Quantity operator*(Rep s, Quantity a) { return Quantity(a.v * s); }
  friend constexpr Quantity operator/(Quantity a, Rep s) { return Quantity(a.v / s); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.v) / static_cast<double>(b.v);
  }
};

using Seconds = Quantity<struct SecondsTag, double>;
using Flops = Quantity<struct FlopsTag, double>;
using Bytes = Quantity<struct BytesTag, std::int64_t>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

// The lawful crossings.
constexpr Seconds operator/(Bytes b, BytesPerSecond r) { return Seconds(static_cast<double>(b.v) / r.v); }
constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return Seconds(f.v / r.v); }
constexpr BytesPerSecond operator/(Bytes b, Seconds t) {
  return BytesPerSecond(static_cast<double>(b.v) / t.v);
}
constexpr FlopsPerSecond operator/(Flops f, Seconds t) { return FlopsPerSecond(f.v / t.v); }

constexpr double gib(Bytes b) { return static_cast<double>(b.v) / (1024.0 * 1024.0 * 1024.0); }
constexpr Bytes from_gib(double gibibytes) {
  return Bytes(static_cast<std::int64_t>(gibibytes * 1024.0 * 1024.0 * 1024.0));
}

namespace literals {
constexpr Seconds operator""_us(long double x) { return Seconds(static_cast<double>(x) * 1e-6); }
constexpr Seconds operator""_us(unsigned long long x) { return Seconds(static_cast<double>(x) * 1e-6); }
constexpr Seconds operator""_ms(long double x) { return Seconds(static_cast<double>(x) * 1e-3); }
constexpr Seconds operator""_ms(unsigned long long x) { return Seconds(static_cast<double>(x) * 1e-3); }
constexpr Bytes operator""_B(unsigned long long x) { return Bytes(static_cast<std::int64_t>(x)); }
constexpr Bytes operator""_MiB(unsigned long long x) { return Bytes(static_cast<std::int64_t>(x) << 20); }
constexpr Bytes operator""_GiB(unsigned long long x) { return Bytes(static_cast<std::int64_t>(x) << 30); }
constexpr BytesPerSecond operator""_GBps(long double x) {
  return BytesPerSecond(static_cast<double>(x) * 1e9);
}
constexpr BytesPerSecond operator""_GBps(unsigned long long x) {
  return BytesPerSecond(static_cast<double>(x) * 1e9);
}
constexpr FlopsPerSecond operator""_TFLOPS(long double x) {
  return FlopsPerSecond(static_cast<double>(x) * 1e12);
}
constexpr FlopsPerSecond operator""_TFLOPS(unsigned long long x) {
  return FlopsPerSecond(static_cast<double>(x) * 1e12);
}
}  // namespace literals

}  // namespace sextant
