// What does a table of nccl-tests say, printed or written by its -J? Sizes and times of one collective (common.cu of NVIDIA/nccl-tests), with the
// ranks and nodes of its list. The collective is the one that its program, or the file, is named after; where neither
// says, sums are told apart by their bus factors. Tables of all_gather and alltoall look the same: they have to say.
// Ignores in-place times, the check's largest error, and whatever a launcher or a collector of logs puts before or into lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/work.hpp"
#include "planner/calibration/printed_machine.hpp"

namespace sextant {

struct NcclSample {
  std::int64_t bytes = 0;  // as printed: of the whole vector
  double time_s = 0;       // out of place
};
struct NcclTable {
  std::string file;
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 0, nodes = 0;
  std::string device;        // of its first rank, as the driver calls it; empty: not printed
  PrintedMachine machine;    // what NCCL's own lines between say
  std::vector<int> node_of;  // of each rank; nodes are numbered as they are first named
  std::vector<NcclSample> samples;
};

// `stated`: the collective, where the caller knows it. Throws ConfigError on text without sizes or ranks, with part of the ranks or several
// tables, on a collective that no layout uses, where the table does not say which it is, and where its check counted wrong results.
NcclTable parse_nccl_table(std::string_view text, const std::string& file,
                           std::optional<CollectiveKind> stated = std::nullopt);

}  // namespace sextant
