#include "core/cluster/group_memo.hpp"

#include <algorithm>

namespace sextant {

namespace {
constexpr std::array kAxes{Axis::tp, Axis::cp, Axis::dp, Axis::pp};
}  // namespace

bool repeats_with(const RankGrid& grid, int period) {
  const auto power = [](int x) { return (x & (x - 1)) == 0; };
  int world = 1;
  bool powers = power(period);
  for (const Axis axis : kAxes) {
    const int extent = grid.extent(axis);
    world *= extent;
    powers = powers && power(extent);
  }
  if (period >= world) return false;
  if (powers) return true;  // of two, each divides or is a multiple of any other
  for (const Axis axis : kAxes) {
    const int stride = grid.stride(axis), end = stride * grid.extent(axis);
    if (period % end != 0 && stride % period != 0 && (period % stride != 0 || end % period != 0))
      return false;
  }
  return world % period == 0;
}

GroupMemo::Key group_key(const RankGrid& grid, std::initializer_list<Axis> axes, int stage, int period) {
  enum Part : int { apart, member, of_stage };  // what a digit tells: groups, members of a group, stages
  struct Digit {
    int stride, extent, part;
  };
  std::array<Digit, 4> digits{};
  std::size_t n = 0;
  int world = 1, size = 1;
  for (const Axis axis : kAxes) {
    const int extent = grid.extent(axis);
    if (extent == 1) continue;
    const bool mine = std::find(axes.begin(), axes.end(), axis) != axes.end();
    const Digit digit{grid.stride(axis), extent,
                      mine                             ? member
                      : axis == Axis::pp && stage >= 0 ? of_stage
                                                       : apart};
    world *= extent;
    size *= mine ? extent : 1;
    std::size_t at = n++;
    for (; at > 0 && digits[at - 1].stride > digit.stride; --at) digits[at] = digits[at - 1];
    digits[at] = digit;
  }
  const bool repeats = repeats_with(grid, period);
  GroupMemo::Key key{GroupMemo::kGroup, -1, size, repeats ? -1 : world};
  std::size_t at = 3;
  int last = -1;
  for (std::size_t i = 0; i < n; ++i) {
    const Digit& d = digits[i];
    const int extent = !repeats ? d.extent : d.stride >= period ? 1 : std::min(d.extent, period / d.stride);
    if (d.part == of_stage) key[1] = stage % extent;
    if (extent == 1) continue;
    if (d.part == last && last != of_stage)
      key[at] += 4 * (key[at] / 4) * (extent - 1);
    else
      key[++at] = 4 * extent + d.part;
    last = d.part;
  }
  return key;
}

}  // namespace sextant
