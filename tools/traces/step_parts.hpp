// One step, predicted or traced, by the parts that both know: what they say of the same time can stand side by side.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/graph/execution_graph.hpp"
#include "core/timeline/breakdown.hpp"
#include "core/timeline/timeline.hpp"
#include "cost_models/analytic.hpp"
#include "tools/traces/group_axes.hpp"
#include "tools/traces/trace_breakdown.hpp"
#include "tools/traces/trace_files.hpp"

namespace sextant {

enum class StepPart : std::uint8_t {
  gemm,  // recomputation included
  attention,
  element_wise,   // copies on the device included
  other_kernels,  // that no rule knows; never predicted
  optimizer,
  exposed_tp,
  exposed_cp,
  exposed_pp,
  exposed_dp,
  exposed_unknown,  // of groups that cannot be told; never predicted
  offload,          // copies between host and device
  bubble,           // idle, or in a transfer between stages, for other stages
  stragglers,       // in collectives, for other ranks
  host,             // idle, as the host had launched nothing
};
inline constexpr std::array<std::string_view, 14> kStepPartNames = {
    "gemm",       "attention",  "element_wise",    "other_kernels", "optimizer", "exposed_tp", "exposed_cp",
    "exposed_pp", "exposed_dp", "exposed_unknown", "offload",       "bubble",    "stragglers", "host"};
constexpr std::string_view name(StepPart p) { return kStepPartNames[static_cast<std::size_t>(p)]; }
using StepParts = std::array<double, kStepPartNames.size()>;  // seconds; they sum to the step
double sum(const StepParts&);

// A kind of collective over an axis: how many of a step, and how long they run, exposed or not. Mean over ranks.
struct AxisCollectives {
  double count = 0, seconds = 0;
};
using CollectiveTable = std::map<std::pair<GroupAxis, CollectiveName>, AxisCollectives>;

struct StepAccount {
  double step_s = 0;
  StepParts parts{};
  CollectiveTable collectives;
  double attention_forward = 0;  // kernels of attention cores per step
};

// A rank's step of middle length, and how far its steps spread.
struct RankAccount {
  int rank = 0;
  std::size_t steps = 0;
  double shortest_s = 0, longest_s = 0;
  StepTime median;
  StepAccount account;
};

struct TracedAccount {
  std::vector<RankAccount> ranks;
  StepAccount mean;  // over ranks
};
TracedAccount traced_account(const TracedJob&, const GroupAxes&);

// What of the step lies outside of the operations.
struct OutsideOperations {
  double stragglers_s = 0, host_s = 0;
};
// Mean over the stages given, one entry for each traced rank: its own.
StepAccount predicted_account(const ExecutionGraph&, const Timeline&, const Breakdown&,
                              const AnalyticCostModel&, const std::vector<int>& stages, OutsideOperations);

}  // namespace sextant
