// Byte-pair encoding of a row of tokens (Sennrich et al. 2016), which bytes or characters are at first: of all neighbouring pairs
// the one of lowest rank is merged, the leftmost first, until no pair has a rank. With a priority queue, O(n log n) of the row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sextant {

struct PairMerge {
  std::int32_t left = 0, right = 0;
  std::int32_t rank = 0, result = 0;
};

class BytePairs {
 public:
  // Of several merges of one pair the last counts.
  explicit BytePairs(std::span<const PairMerge> merges);

  // Appends what is left of the row when everything is merged.
  void encode(std::span<const std::int32_t> row, std::vector<std::int32_t>& out) const;

 private:
  struct Entry {
    std::uint64_t pair = kFree;
    std::int32_t rank = 0, result = 0;
  };
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t pair) const { return (pair * 0x9e3779b97f4a7c15U) >> shift_; }
  const Entry* find(std::int32_t left, std::int32_t right) const;

  std::vector<Entry> table_;  // open addressing, at most half full: one cache line a lookup
  int shift_ = 0;
};

}  // namespace sextant
