// What a measurement of a machine is of, and its name in profiles: "gemm bf16 8192x8192x8192", "all_reduce 4194304B g8
// nodes2". Who measures makes the names, who prices reads them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/dtype.hpp"
#include "core/base/units.hpp"
#include "core/graph/work.hpp"

namespace sextant {

struct SquareGemm {
  Dtype format = Dtype::fp32;
  std::int64_t extent = 0;
  int ranks = 1;  // that make such a GEMM at the same time
  bool operator==(const SquareGemm&) const = default;
};
struct CopyWithin {  // a device's memory
  Bytes bytes;
  bool operator==(const CopyWithin&) const = default;
};
struct SmallestKernel {  // behind another such; by the host: until it is enqueued
  bool by_host = false;
  bool operator==(const SmallestKernel&) const = default;
};
struct MeasuredCollective {  // of the first ranks of the job
  CollectiveKind kind = CollectiveKind::all_reduce;
  Bytes bytes;  // as of CollectiveWork
  int ranks = 2, nodes = 1;
  bool one_device = false;  // ranks that share a GPU copy within its memory
  bool operator==(const MeasuredCollective&) const = default;
};
// monostate: a name of another version.
using Measured =
    std::variant<std::monostate, SquareGemm, CopyWithin, CopyWork, SmallestKernel, MeasuredCollective>;

std::string measurement_name(const Measured&);
Measured parse_measurement(std::string_view name);

}  // namespace sextant
