// Which of a layout's steps on a machine that varies decides about it: the undisturbed one, the expected one under the
// cluster's stated jitter, or the one that nine of ten steps do not exceed.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sextant {

enum class RankBy : std::uint8_t { undisturbed, expected, p90 };
inline constexpr std::array<std::string_view, 3> kRankByNames = {"undisturbed", "expected", "p90"};

}  // namespace sextant
