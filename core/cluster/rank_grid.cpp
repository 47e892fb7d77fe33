#include "core/cluster/rank_grid.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace sextant {

bool same_order(const RankDegrees& ranks, const AxisOrder& order) {
  const std::array<int, 4> degrees = {ranks.tp, ranks.cp, ranks.dp, ranks.pp};
  const auto next = [&](const AxisOrder& axes, std::size_t at) {
    while (at < axes.size() && degrees[static_cast<std::size_t>(axes[at])] == 1) ++at;
    return at;
  };
  std::size_t mine = next(ranks.order, 0), theirs = next(order, 0);
  while (mine < order.size() && theirs < order.size() && ranks.order[mine] == order[theirs]) {
    mine = next(ranks.order, mine + 1);
    theirs = next(order, theirs + 1);
  }
  return mine == order.size() && theirs == order.size();
}

bool in_one_of(const std::vector<AxisOrder>& orders, const RankDegrees& ranks) {
  return orders.empty() ||
         std::ranges::any_of(orders, [&](const AxisOrder& o) { return same_order(ranks, o); });
}

std::string order_text(const AxisOrder& order) {
  return fmt::format("{}-{}-{}-{}", name(order[0]), name(order[1]), name(order[2]), name(order[3]));
}

RankGrid::RankGrid(const RankDegrees& ranks) {
  extent_[static_cast<std::size_t>(Axis::tp)] = ranks.tp;
  extent_[static_cast<std::size_t>(Axis::cp)] = ranks.cp;
  extent_[static_cast<std::size_t>(Axis::dp)] = ranks.dp;
  extent_[static_cast<std::size_t>(Axis::pp)] = ranks.pp;
  int stride = 1;
  for (const Axis axis : ranks.order) {
    int& mine = stride_[static_cast<std::size_t>(axis)];
    SEXTANT_CHECK(mine == 0, "axis_order names an axis twice");
    mine = stride;
    stride *= extent(axis);
  }
}

int RankGrid::stride(Axis axis) const { return stride_[static_cast<std::size_t>(axis)]; }
int RankGrid::extent(Axis axis) const { return extent_[static_cast<std::size_t>(axis)]; }

RankCoord RankGrid::coord(int rank) const {
  const auto along = [&](Axis axis) { return rank / stride(axis) % extent(axis); };
  return {along(Axis::tp), along(Axis::cp), along(Axis::dp), along(Axis::pp)};
}

int RankGrid::rank(const RankCoord& c) const {
  return c.tp * stride(Axis::tp) + c.cp * stride(Axis::cp) + c.dp * stride(Axis::dp) +
         c.pp * stride(Axis::pp);
}

std::vector<int> RankGrid::group(const RankCoord& member, std::initializer_list<Axis> axes) const {
  RankCoord origin = member;
  for (const Axis axis : axes) {
    if (axis == Axis::tp) origin.tp = 0;
    if (axis == Axis::cp) origin.cp = 0;
    if (axis == Axis::dp) origin.dp = 0;
    if (axis == Axis::pp) origin.pp = 0;
  }
  std::vector<int> ranks = {rank(origin)};
  for (const Axis axis : axes) {
    const std::size_t inner = ranks.size();
    ranks.reserve(inner * static_cast<std::size_t>(extent(axis)));
    for (int i = 1; i < extent(axis); ++i)
      for (std::size_t j = 0; j < inner; ++j) ranks.push_back(ranks[j] + i * stride(axis));
  }
  return ranks;
}

}  // namespace sextant
