// Which axis of the layout does a process group of a trace span? By its ranks, else by the framework's words for it, else by what is
// the only one possible.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "core/cluster/rank_grid.hpp"
#include "tools/traces/gpu_trace.hpp"
#include "tools/traces/kernel_names.hpp"

namespace sextant {

enum class GroupAxis : std::uint8_t { tp, cp, pp, dp, unknown };
inline constexpr std::array<std::string_view, 5> kGroupAxisNames = {"tp", "cp", "pp", "dp", "unknown"};
constexpr std::string_view name(GroupAxis a) { return kGroupAxisNames[static_cast<std::size_t>(a)]; }

class GroupAxes {
 public:
  // Without a layout (nothing is known of it) words alone decide.
  GroupAxes(const KernelNames& rules, const std::optional<RankDegrees>& layout) : rules_(rules) {
    if (layout) grid_.emplace(*layout);
  }

  // Of a collective that `rank` takes part in. Groups over several axes are those of gradients and of the norm: dp.
  GroupAxis axis_of(const ProcessGroup&, CollectiveName, int rank) const;

 private:
  std::optional<GroupAxis> by_ranks(const ProcessGroup&, int rank) const;
  std::optional<GroupAxis> by_words(const ProcessGroup&) const;
  std::optional<GroupAxis> by_elimination(const ProcessGroup&, CollectiveName) const;

  const KernelNames& rules_;
  std::optional<RankGrid> grid_;
};

}  // namespace sextant
