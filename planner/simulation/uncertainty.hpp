// How far may a prediction be off, and why? Each run falls into one class, by the first of its properties that
// measured runs were hard to predict for; its intervals are the errors that most measured runs of that class stayed
// within. In-sample for stacks that were fitted; a stack known by its class alone gets the framework map's wider
// interval on top. Every number stands in tools/presets/calibration/intervals.json.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "core/plan/stack_spec.hpp"

namespace sextant {

enum class UncertaintyClass : std::uint8_t {
  none,        // compute-bound, inside what was measured
  exposed,     // communication lengthens the step
  near_full,   // the memory is nearly full
  offload,     // state or activations on the host
  tp_crosses,  // tensor parallelism leaves the node's fast links
  many_cp,     // more context-parallel ranks than most measured runs with any have
};
inline constexpr int kUncertaintyClasses = 6;
std::string_view name(UncertaintyClass);
std::string_view reason(
    UncertaintyClass);  // "its tensor parallelism leaves the fast links of a node"; none: empty

// What the classes begin at, and how wide their intervals are.
struct UncertaintyRules {
  double exposed_share = 0;  // of the step that communication lengthens it by: more is `exposed`
  double filled_share = 0;   // of the memory: more is `near_full`
  int most_cp = 0;           // ranks: more is `many_cp`
  // Relative half widths of 90 % intervals, [value / (1 + u), value (1 + u)], by UncertaintyClass.
  std::array<double, kUncertaintyClasses> step{}, memory{};
  double exact_memory = 0;    // the same of a stack whose tensors are known to the byte, in every class
  double published_runs = 0;  // of a user's own that the published scatter counts as
  double fitted_share = 0;    // of the measured runs of a class that a fitted width holds
  int fewest_runs = 0;        // of a class whose width is fitted

  double step_half_width(UncertaintyClass d) const { return step[static_cast<std::size_t>(d)]; }
  double memory_half_width(UncertaintyClass d, const StackSpec& stack) const {
    return stack.memory.exact_tensors ? exact_memory : memory[static_cast<std::size_t>(d)];
  }
};

// Throws ConfigError naming file, key and what is expected.
UncertaintyRules load_uncertainty_rules(const std::filesystem::path& preset_dir);

// filled: predicted peak over the device's memory; a stack that lays its memory out before the run is not slowed by it.
// exposed_share: of the step, what communication lengthens it by.
UncertaintyClass uncertainty_of(const UncertaintyRules&, const ParallelPlan&, const ClusterSpec&,
                                const StackSpec&, double filled, double exposed_share);

}  // namespace sextant
