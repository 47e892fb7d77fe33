// Which normal number is the i-th of a tensor? The same bits from any compiler and processor: integers, and of IEEE 754
// fp64 sums, products, quotients and roots only; no library's logarithm or cosine. Needs a compiler that does not contract.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/host_device.hpp"

namespace sextant::counter {

struct Block {
  std::uint32_t word[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
SEXTANT_BOTH Block philox(Block b, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#ifdef __CUDACC__
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p = std::uint64_t{0xD2511F53u} * b.word[0],
                        q = std::uint64_t{0xCD9E8D57u} * b.word[2];
    b = {{static_cast<std::uint32_t>(q >> 32) ^ b.word[1] ^ k0, static_cast<std::uint32_t>(q),
          static_cast<std::uint32_t>(p >> 32) ^ b.word[3] ^ k1, static_cast<std::uint32_t>(p)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return b;
}

// (n + 1/2) / 2^52 of the upper 52 bits n: in (0, 1), exact, and as often below as above 1/2.
SEXTANT_BOTH double uniform(std::uint64_t bits) {
  const std::uint64_t in_1_2 = (bits >> 12) | 0x3ff0000000000000u;
  double x = 0;
  std::memcpy(&x, &in_1_2, sizeof x);
  return (x - 1.0) + 0x1p-53;
}

// log(u) of a normal u > 0. u = m 2^k with m within a root of 2 of 1, log m = 2 atanh((m - 1) / (m + 1)) by its series:
// what is left out is below 4e-14 of it.
SEXTANT_BOTH double logarithm(double u) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &u, sizeof u);
  const std::int32_t k = (static_cast<std::int32_t>(bits >> 32) - 0x3fe6a09e) >> 20;
  bits -= static_cast<std::uint64_t>(static_cast<std::int64_t>(k)) << 52;
  double m = 0;
  std::memcpy(&m, &bits, sizeof m);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double series = 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  series = series * z + 1.0;
  return static_cast<double>(k) * 0.69314718055994530942 + (s + s) * series;
}

struct Pair {
  double first, second;
};

// cos and sin of an angle in [0, 2 pi) that `bits` spread evenly: a quadrant by the two upper ones, and within it an angle
// of at most pi / 4 from its middle, by Taylor's series to below 1e-15.
SEXTANT_BOTH Pair circle(std::uint64_t bits) {
  const double x = 1.57079632679489661923 * (uniform(bits << 2) - 0.5), z = x * x;
  double sine = -1.0 / 1307674368000;
  sine = sine * z + 1.0 / 6227020800;
  sine = sine * z - 1.0 / 39916800;
  sine = sine * z + 1.0 / 362880;
  sine = sine * z - 1.0 / 5040;
  sine = sine * z + 1.0 / 120;
  sine = sine * z - 1.0 / 6;
  sine = (sine * z + 1.0) * x;
  double cosine = 1.0 / 20922789888000;
  cosine = cosine * z - 1.0 / 87178291200;
  cosine = cosine * z + 1.0 / 479001600;
  cosine = cosine * z - 1.0 / 3628800;
  cosine = cosine * z + 1.0 / 40320;
  cosine = cosine * z - 1.0 / 720;
  cosine = cosine * z + 1.0 / 24;
  cosine = cosine * z - 0.5;
  cosine = cosine * z + 1.0;
  const auto quadrant = static_cast<unsigned>(bits >> 62);
  const double a = (quadrant & 1) != 0 ? sine : cosine, b = (quadrant & 1) != 0 ? cosine : sine;
  return {quadrant == 1 || quadrant == 2 ? -a : a, quadrant >= 2 ? -b : b};
}

// Normal numbers 2 i and 2 i + 1 of a tensor (Box and Muller 1958): up to 8.5 deviations from 0, as 52 bits have it.
SEXTANT_BOTH Pair normal_pair(std::uint64_t key, std::uint64_t i) {
  const Block b = philox({{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0}}, key);
  const std::uint64_t radius = std::uint64_t{b.word[1]} << 32 | b.word[0],
                      angle = std::uint64_t{b.word[3]} << 32 | b.word[2];
  const double r = sqrt(-2.0 * logarithm(uniform(radius)));
  const Pair at = circle(angle);
  return {r * at.first, r * at.second};
}
SEXTANT_BOTH double normal(std::uint64_t key, std::uint64_t index) {
  const Pair both = normal_pair(key, index >> 1);
  return (index & 1) != 0 ? both.second : both.first;
}

}  // namespace sextant::counter
