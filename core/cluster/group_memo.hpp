// Groups that a topology was asked for before: the layouts of a search share most of theirs. Internal to
// core/cluster/topology.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "core/cluster/group_shape.hpp"
#include "core/cluster/rank_grid.hpp"

namespace sextant {

class GroupMemo {
 public:
  enum Asked : int { kGroup = 1, kNext, kShards, kDigits };  // first entry of a key
  using Key = std::array<int, 10>;
  using Groups = std::array<GroupShape, 2>;
  template <class Make>
  Groups of(const Key& key, const Make& make) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
    }
    const Groups made = make();
    const std::unique_lock lock(mutex_);
    return known_.emplace(key, made).first->second;
  }

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const {
      // Sums of products of two halves each (NH): the products do not wait for one another.
      std::array<std::uint64_t, 5> w;
      static_assert(sizeof w == sizeof key);
      std::memcpy(w.data(), key.data(), sizeof w);
      std::uint64_t h = (w[0] + 0x9E3779B97F4A7C15ull) * (w[1] + 0xD6E8FEB86659FD93ull) +
                        (w[2] + 0xC2B2AE3D27D4EB4Full) * (w[3] + 0x165667B19E3779F9ull) +
                        w[4] * 0x27D4EB2F165667C5ull;
      h = (h ^ h >> 32) * 0x9FB21C651E98DF25ull;
      return h ^ h >> 32;
    }
  };
  std::shared_mutex mutex_;
  std::unordered_map<Key, Groups, Hash> known_;
};

// Whether blocks of `period` ranks map groups onto groups: every digit of a rank begins and ends within it or at whole
// numbers of it. See core/cluster/rank_pattern.hpp.
bool repeats_with(const RankGrid&, int period);

// What the slowest group along `axes` depends on: the digits of a rank from the innermost on, by what they are to the
// groups; neighbours that are the same to them are one digit. When the cluster repeats itself with `period` ranks, and
// the groups with it, what lies beyond tells no more than their size. `stage` is -1 where all have the same groups.
GroupMemo::Key group_key(const RankGrid&, std::initializer_list<Axis> axes, int stage, int period);

}  // namespace sextant
