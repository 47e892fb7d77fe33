// Where does each rank stand? Ranks of a layout as points of a grid whose axes are its kinds of parallelism: coordinates, and
// the ranks of a group. All that a topology knows of a layout.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

enum class Axis : std::uint8_t { tp, cp, dp, pp };
using AxisOrder = std::array<Axis, 4>;

inline constexpr std::array<std::string_view, 4> kAxisNames = {"tp", "cp", "dp", "pp"};
constexpr std::string_view name(Axis a) { return kAxisNames[static_cast<std::size_t>(a)]; }

struct RankDegrees {
  int tp = 1, cp = 1, dp = 1, pp = 1;
  AxisOrder order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};  // innermost first, onto ranks
};

// The same order onto ranks, axes of one rank aside.
bool same_order(const RankDegrees&, const AxisOrder&);
// Whether one of the orders is the same; none of them: any is.
bool in_one_of(const std::vector<AxisOrder>&, const RankDegrees&);
// "tp-cp-dp-pp"
std::string order_text(const AxisOrder&);

struct RankCoord {
  int tp = 0, cp = 0, dp = 0, pp = 0;
  bool operator==(const RankCoord&) const = default;
};

class RankGrid {
 public:
  explicit RankGrid(const RankDegrees&);
  RankCoord coord(int rank) const;
  int rank(const RankCoord&) const;
  int stride(Axis) const;  // distance in ranks between neighbours along an axis
  int extent(Axis) const;
  // Ranks of the group through `member` along the given axes, in order of the axes (first fastest).
  std::vector<int> group(const RankCoord& member, std::initializer_list<Axis> axes) const;

 private:
  std::array<int, 4> extent_{}, stride_{};
};

}  // namespace sextant
