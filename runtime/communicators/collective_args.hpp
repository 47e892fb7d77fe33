// What every communicator checks and computes about the arguments of a call.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>

#include "core/base/dtype.hpp"

namespace sextant {

inline std::int64_t sum_of(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}
inline std::int64_t offset_of(std::span<const std::int64_t> sizes, int rank) {
  return sum_of(sizes.first(static_cast<std::size_t>(rank)));
}

// Throw unless the arguments are as communicator.hpp states.
void check_all_reduce(const void* in, const void* out, std::int64_t count, Dtype);
void check_reduce_scatter(const void* in, const void* out, std::span<const std::int64_t> counts, Dtype,
                          int rank, int size);
void check_all_gather(const void* in, const void* out, std::span<const std::int64_t> bytes, int rank,
                      int size);
void check_peer(int peer, int rank, int size);
void check_members(std::span<const int> ranks, int self, int group_size);

}  // namespace sextant
