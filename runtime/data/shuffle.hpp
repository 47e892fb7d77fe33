// Orders without a memory: what stands at a place follows from (seed, place) alone, so any layout, and a run that goes on
// after an interruption, sees the same.
#pragma once

#include <cstdint>
#include <vector>

namespace sextant {

// A value of `index` that is hard to tell from random; the finaliser of SplitMix64 (Steele et al. 2014).
std::uint64_t scrambled(std::uint64_t seed, std::uint64_t index);

// Where place `index` of [0, count) goes under the permutation of `seed`: a Feistel network over the next even power of
// two, walked until it lands below `count` (Black and Rogaway 2002; fewer than four rounds of the walk on average).
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t seed);

// Shares of a mixture: which part sample `index` is of, and the how-manieth of this part it is. Every 65536 samples hold
// each part in proportion to its weight, to 1/65536.
class Mixture {
 public:
  Mixture(const std::vector<double>& weights, std::uint64_t seed);  // all > 0
  struct Place {
    std::size_t part;
    std::int64_t index;
  };
  Place at(std::int64_t index) const;

 private:
  static constexpr std::int64_t kBlock = 65536;
  std::vector<std::int64_t> ends_;  // of the parts within a block
  std::uint64_t seed_;
};

}  // namespace sextant
