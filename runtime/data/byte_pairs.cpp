#include "runtime/data/byte_pairs.hpp"

#include <bit>
#include <queue>

namespace sextant {

BytePairs::BytePairs(std::span<const PairMerge> merges) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2));
  table_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  for (const PairMerge& m : merges) {
    const std::uint64_t pair = pair_of(m.left, m.right);
    std::size_t slot = slot_of(pair);
    while (table_[slot].pair != kFree && table_[slot].pair != pair) slot = (slot + 1) & (slots - 1);
    table_[slot] = {pair, m.rank, m.result};
  }
}

const BytePairs::Entry* BytePairs::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t slot = slot_of(pair);; slot = (slot + 1) & (table_.size() - 1)) {
    if (table_[slot].pair == pair) return &table_[slot];
    if (table_[slot].pair == kFree) return nullptr;
  }
}

void BytePairs::encode(std::span<const std::int32_t> row, std::vector<std::int32_t>& out) const {
  // Tokens as a linked list over the places where they begin; a merge keeps the left one's place.
  struct Node {
    std::int32_t id;
    std::int32_t before, behind;  // -1: none
  };
  struct Candidate {
    std::int32_t rank, place;
    std::int32_t left, right, result;  // what stood there when it was found
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };
  constexpr std::int32_t kGone = -1;  // no token
  const auto n = static_cast<std::int32_t>(row.size());
  std::vector<Node> nodes(row.size());
  std::vector<Candidate> storage;
  storage.reserve(row.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(storage));
  const auto at = [&](std::int32_t place) -> Node& { return nodes[static_cast<std::size_t>(place)]; };
  const auto offer = [&](std::int32_t place) {
    const Node& left = at(place);
    if (left.behind < 0) return;
    const Node& right = at(left.behind);
    if (const Entry* e = find(left.id, right.id)) queue.push({e->rank, place, left.id, right.id, e->result});
  };
  for (std::int32_t i = 0; i < n; ++i)
    at(i) = {row[static_cast<std::size_t>(i)], i - 1, i + 1 < n ? i + 1 : -1};
  for (std::int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    Node& left = at(c.place);
    if (left.id == kGone || left.behind < 0) continue;
    Node& right = at(left.behind);
    if (left.id != c.left ||
        right.id != c.right) {  // merged otherwise since; to the same token it may be as well
      const Entry* e = find(left.id, right.id);
      if (!e || e->result != c.result) continue;
    }
    left.id = c.result;
    left.behind = right.behind;
    right.id = kGone;
    if (left.behind >= 0) at(left.behind).before = c.place;
    if (left.before >= 0) offer(left.before);
    offer(c.place);
  }
  for (std::int32_t i = n == 0 ? -1 : 0; i >= 0; i = at(i).behind) out.push_back(at(i).id);
}

}  // namespace sextant
