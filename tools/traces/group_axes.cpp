#include "tools/traces/group_axes.hpp"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace sextant {
namespace {

GroupAxis group_axis(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return GroupAxis::tp;
    case Axis::cp:
      return GroupAxis::cp;
    case Axis::pp:
      return GroupAxis::pp;
    case Axis::dp:
      break;
  }
  return GroupAxis::dp;
}

}  // namespace

std::optional<GroupAxis> GroupAxes::by_ranks(const ProcessGroup& group, int rank) const {
  const RankGrid& grid = *grid_;
  const int world =
      grid.extent(Axis::tp) * grid.extent(Axis::cp) * grid.extent(Axis::dp) * grid.extent(Axis::pp);
  if (group.ranks.empty() || rank < 0 || rank >= world) return std::nullopt;
  std::vector<int> ranks = group.ranks;
  std::ranges::sort(ranks);
  const auto is = [&](std::initializer_list<Axis> axes) {
    std::vector<int> members = grid.group(grid.coord(rank), axes);
    std::ranges::sort(members);
    return members == ranks;
  };
  std::optional<GroupAxis> found;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::pp, Axis::dp})
    if (grid.extent(axis) > 1 && is({axis})) found = group_axis(axis);
  if (found) return found;
  if (static_cast<int>(ranks.size()) == world || is({Axis::dp, Axis::cp}) || is({Axis::tp, Axis::pp}) ||
      is({Axis::tp, Axis::dp}) || is({Axis::tp, Axis::cp, Axis::dp}))
    return GroupAxis::dp;
  // Neighbouring stages, or first and last, as groups of their own.
  const bool of_stages = std::ranges::all_of(ranks, [&](int r) {
    if (r < 0 || r >= world) return false;
    RankCoord at = grid.coord(r);
    at.pp = grid.coord(rank).pp;
    return at == grid.coord(rank);
  });
  return of_stages && ranks.size() > 1 ? std::optional(GroupAxis::pp) : std::nullopt;
}

std::optional<GroupAxis> GroupAxes::by_words(const ProcessGroup& group) const {
  const std::vector<Axis> axes = rules_.axes_of(group.description);
  if (axes.empty()) return std::nullopt;
  if (grid_ && std::ranges::none_of(axes, [&](Axis a) { return grid_->extent(a) > 1; })) return std::nullopt;
  return axes.size() == 1 ? group_axis(axes.front()) : GroupAxis::dp;
}

std::optional<GroupAxis> GroupAxes::by_elimination(const ProcessGroup& group,
                                                   CollectiveName collective) const {
  const int tp = grid_->extent(Axis::tp), cp = grid_->extent(Axis::cp), dp = grid_->extent(Axis::dp);
  const bool staged = grid_->extent(Axis::pp) > 1;
  if (collective == CollectiveName::send_recv && (staged || cp > 1))
    return staged ? GroupAxis::pp : GroupAxis::cp;
  std::optional<GroupAxis> found;
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::dp}) {
    if (grid_->extent(axis) < 2) continue;
    if (found && !(axis == Axis::dp && *found == GroupAxis::cp)) return std::nullopt;
    found = group_axis(axis);
  }
  if (!found || group.size == 0) return found;
  const bool fits = group.size == tp || group.size == cp || group.size == dp || group.size == dp * cp;
  return fits ? found : std::nullopt;
}

GroupAxis GroupAxes::axis_of(const ProcessGroup& group, CollectiveName collective, int rank) const {
  if (grid_)
    if (const auto axis = by_ranks(group, rank)) return *axis;
  if (const auto axis = by_words(group)) return *axis;
  if (grid_)
    if (const auto axis = by_elimination(group, collective)) return *axis;
  return GroupAxis::unknown;
}

}  // namespace sextant
