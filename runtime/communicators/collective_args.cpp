#include "runtime/communicators/collective_args.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "core/base/error.hpp"
#include "runtime/communicators/communicator.hpp"

namespace sextant {

namespace {

void check_sizes(std::span<const std::int64_t> sizes, int group_size) {
  SEXTANT_CHECK(std::ssize(sizes) == group_size, "one size for every rank of the group");
  SEXTANT_CHECK(std::ranges::all_of(sizes, [](std::int64_t n) { return n >= 0; }), "sizes are not negative");
}

// `slice` may lie exactly at `whole + offset`, or must be disjoint from [whole, whole + bytes).
void check_overlap(const void* whole, std::int64_t bytes, const void* slice, std::int64_t slice_bytes,
                   std::int64_t offset) {
  const auto* w = static_cast<const std::byte*>(whole);
  const auto* s = static_cast<const std::byte*>(slice);
  if (bytes == 0 || slice_bytes == 0 || s == w + offset) return;
  const std::less_equal<> before;
  SEXTANT_CHECK(before(w + bytes, s) || before(s + slice_bytes, w),
                "buffers of a collective overlap other than in place");
}

}  // namespace

void check_all_reduce(const void* in, const void* out, std::int64_t count, Dtype dtype) {
  SEXTANT_CHECK(count >= 0, "sizes are not negative");
  check_overlap(in, count * size_bytes(dtype), out, count * size_bytes(dtype), 0);
}

void check_reduce_scatter(const void* in, const void* out, std::span<const std::int64_t> counts, Dtype dtype,
                          int rank, int size) {
  check_sizes(counts, size);
  const auto element = size_bytes(dtype);
  check_overlap(in, sum_of(counts) * element, out, counts[static_cast<std::size_t>(rank)] * element,
                offset_of(counts, rank) * element);
}

void check_all_gather(const void* in, const void* out, std::span<const std::int64_t> bytes, int rank,
                      int size) {
  check_sizes(bytes, size);
  check_overlap(out, sum_of(bytes), in, bytes[static_cast<std::size_t>(rank)], offset_of(bytes, rank));
}

void check_peer(int peer, int rank, int size) {
  SEXTANT_CHECK(peer >= 0 && peer < size && peer != rank, "the peer is another rank of the group");
}

void check_members(std::span<const int> ranks, int self, int group_size) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  SEXTANT_CHECK(!ranks.empty() && distinct.size() == ranks.size(), "ranks of a group are distinct");
  SEXTANT_CHECK(*distinct.begin() >= 0 && *distinct.rbegin() < group_size, "ranks of a group exist");
  SEXTANT_CHECK(distinct.contains(self), "who makes a group is one of its ranks");
}

std::unique_ptr<Communicator> everyone(Communicator& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(ranks);
}

std::vector<std::int64_t> even_split(std::int64_t total, int parts) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(parts), total / parts);
  for (std::int64_t i = 0; i < total % parts; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

}  // namespace sextant
