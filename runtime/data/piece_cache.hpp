// Text repeats itself: pieces that were encoded before, with their tokens. One thread's; forgets all when it is full.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

class PieceCache {
 public:
  static constexpr std::size_t kLongest = 64, kMostIds = 1024, kMost = 1U << 17;

  std::optional<std::span<const std::int32_t>> find(std::string_view piece) const {
    if (piece.size() > kLongest || slots_.empty()) return {};
    const Slot& slot = slots_[place_of(piece, hash_of(piece))];
    if (slot.length == kFree) return {};
    return std::span(ids_).subspan(slot.ids, slot.count);
  }

  // A piece that is not there yet, unless it or its tokens are too long. What was found is no longer there.
  void keep(std::string_view piece, std::span<const std::int32_t> ids) {
    if (piece.size() > kLongest || ids.size() > kMostIds) return;
    if (2 * (kept_ + 1) > slots_.size()) make_room();
    const std::uint64_t hash = hash_of(piece);
    slots_[place_of(piece, hash)] = {.hash = hash,
                                     .key = static_cast<std::uint32_t>(keys_.size()),
                                     .ids = static_cast<std::uint32_t>(ids_.size()),
                                     .count = static_cast<std::uint16_t>(ids.size()),
                                     .length = static_cast<std::uint16_t>(piece.size())};
    keys_ += piece;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ++kept_;
  }

 private:
  static constexpr std::uint16_t kFree = 0xffff;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t key = 0, ids = 0;  // where they begin in keys_, ids_
    std::uint16_t count = 0, length = kFree;
  };

  static std::uint64_t hash_of(std::string_view piece) {
    constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;
    std::uint64_t hash = piece.size() * kFactor;
    const auto mix = [&hash](std::uint64_t word) {
      hash = (hash ^ word) * kFactor;
      hash ^= hash >> 32;
    };
    const auto load = [&piece](std::size_t at, auto word) {
      std::memcpy(&word, piece.data() + at, sizeof word);
      return std::uint64_t{word};
    };
    const std::size_t size = piece.size();
    if (size >= 8) {
      for (std::size_t at = 0; at + 8 < size; at += 8) mix(load(at, std::uint64_t{}));
      mix(load(size - 8, std::uint64_t{}));
    } else if (size >= 4) {
      mix(load(0, std::uint32_t{}) << 32 | load(size - 4, std::uint32_t{}));
    } else if (size > 0) {
      mix(load(0, std::uint8_t{}) << 16 | load(size / 2, std::uint8_t{}) << 8 |
          load(size - 1, std::uint8_t{}));
    }
    return hash;
  }
  // Of the piece, or of the free slot that it would take. Linear probing, at most half full.
  std::size_t place_of(std::string_view piece, std::uint64_t hash) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t place = hash & mask;; place = (place + 1) & mask) {
      const Slot& slot = slots_[place];
      if (slot.length == kFree) return place;
      if (slot.hash == hash && slot.length == piece.size() &&
          std::memcmp(keys_.data() + slot.key, piece.data(), piece.size()) == 0)
        return place;
    }
  }
  void make_room() {
    constexpr std::size_t kFirst = 1024;
    std::vector<Slot> before(slots_.empty() ? kFirst : kept_ < kMost ? slots_.size() * 2 : slots_.size());
    before.swap(slots_);
    if (kept_ >= kMost) {
      keys_.clear();
      ids_.clear();
      kept_ = 0;
      return;
    }
    const std::size_t mask = slots_.size() - 1;
    for (const Slot& slot : before) {
      if (slot.length == kFree) continue;
      std::size_t place = slot.hash & mask;
      while (slots_[place].length != kFree) place = (place + 1) & mask;
      slots_[place] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two, or none
  std::string keys_;
  std::vector<std::int32_t> ids_;
  std::size_t kept_ = 0;
};

}  // namespace sextant
