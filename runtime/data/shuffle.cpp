#include "runtime/data/shuffle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/base/error.hpp"

namespace sextant {

std::uint64_t scrambled(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15U * (index + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed) {
  SEXTANT_CHECK(index >= 0 && index < count, "a place outside of what is permuted");
  if (count == 1) return 0;
  const int half = (std::bit_width(static_cast<std::uint64_t>(count - 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  constexpr int kRounds = 6;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (scrambled(seed + round, right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

Mixture::Mixture(const std::vector<double>& weights, std::uint64_t seed) : seed_(seed) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  SEXTANT_CHECK(!weights.empty() && sum > 0, "a mixture of nothing");
  double before = 0;
  for (const double w : weights) {
    before += w;
    ends_.push_back(std::llround(before / sum * kBlock));
  }
}

Mixture::Place Mixture::at(std::int64_t index) const {
  if (ends_.size() == 1) return {0, index};
  const std::int64_t block = index / kBlock;
  const std::int64_t slot =
      permuted(index % kBlock, kBlock, scrambled(seed_, static_cast<std::uint64_t>(block)));
  const auto part =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), slot) - ends_.begin());
  const std::int64_t begin = part == 0 ? 0 : ends_[part - 1];
  return {part, block * (ends_[part] - begin) + slot - begin};
}

}  // namespace sextant
