// Where did a step's time go? The compute lane of every stage, instant by instant, predicted or measured alike.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/timeline.hpp"

namespace sextant {

enum class TimeCategory : std::uint8_t {
  compute,     // forward and backward of the model
  recompute,   // forward repeated in the backward pass
  exposed_tp,  // tensor-parallel collectives on the compute lane, or waited for
  exposed_cp,
  exposed_pp,  // stage-to-stage transfers that the receiver or sender waits for
  exposed_dp,  // parameter gathers and gradient reductions that nothing hides
  optimizer,   // Adam, gradient norm, clearing gradients
  offload,     // copies from and to the host, and the host's update, that are waited for
  bubble,      // waiting for other stages, as any pipeline of equal stages does
  imbalance,   // waiting for a heavier stage
};
inline constexpr int kTimeCategories = 10;
std::string_view name(TimeCategory);

using TimeSplit = std::array<double, kTimeCategories>;  // seconds by TimeCategory

struct Breakdown {
  Seconds step;
  std::vector<TimeSplit> stages;  // each sums to the step
  TimeSplit mean{};               // over stages; sums to the step
  // Seconds by WorkId in which compute lanes ran its operations or waited for them, mean over stages; with bubble and
  // imbalance they sum to the step.
  std::vector<double> by_work;
};

Breakdown breakdown(const ExecutionGraph&, const Timeline&);

}  // namespace sextant
