// How far may a prediction be off, and why? Each run falls into one class, by the first of its properties that
// measured runs were hard to predict for; its intervals are the errors that nine of ten measured runs of that class
// stayed within. In-sample for stacks that were fitted; a stack known by its class alone gets the framework map's
// wider interval on top.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/cluster_spec.hpp"
#include "core/parallel_plan.hpp"

namespace sextant {

enum class Doubt : std::uint8_t {
  none,        // compute-bound, inside what was measured
  exposed,     // communication lengthens the step by a fifth or more
  near_full,   // more than nine tenths of the memory
  offload,     // state or activations on the host
  tp_crosses,  // tensor parallelism leaves the node's fast links
  many_cp,     // more context-parallel ranks than any measured run has
};
inline constexpr int kDoubts = 6;
std::string_view name(Doubt);
std::string_view reason(Doubt);  // "its tensor parallelism leaves the fast links of a node"; none: empty

// filled: predicted peak over the device's memory. exposed_share: of the step, what communication lengthens it by.
Doubt doubt_of(const ParallelPlan&, const ClusterSpec&, double filled, double exposed_share);

// Relative half widths of 90 % intervals, [value / (1 + u), value (1 + u)].
double step_half_width(Doubt);
double memory_half_width(Doubt);

}  // namespace sextant
