#include "planner/doubt.hpp"

#include <array>

namespace sextant {

namespace {

constexpr std::array<std::string_view, kDoubts> kNames = {"none", "exposed", "near_full", "offload",
                                                          "tp_crosses"};

// exp(q) - 1, q the 90th percentile of |log(measured / predicted)| over the published runs of a class (971, 274, 100,
// 50 and 25 step times; 339, 308, 20, 0 and 56 peaks, of which offload's is judgement). accuracy_test prints them.
constexpr std::array<double, kDoubts> kStep = {0.10, 0.15, 0.24, 0.76, 1.20};
constexpr std::array<double, kDoubts> kMemory = {0.12, 0.15, 0.16, 0.30, 0.63};

}  // namespace

std::string_view name(Doubt d) { return kNames[static_cast<std::size_t>(d)]; }

Doubt doubt_of(const ResolvedRun& run, double filled, double exposed_share) {
  constexpr double kExposed = 0.2, kFilled = 0.9;
  const ParallelPlan& p = run.plan;
  if (p.tp > run.cluster.node.gpus * run.cluster.node.domain_nodes) return Doubt::tp_crosses;
  if (p.optimizer_offload > 0 || p.parameter_offload || p.activation_offload > 0) return Doubt::offload;
  if (filled > kFilled) return Doubt::near_full;
  return exposed_share > kExposed ? Doubt::exposed : Doubt::none;
}

double step_half_width(Doubt d) { return kStep[static_cast<std::size_t>(d)]; }
double memory_half_width(Doubt d) { return kMemory[static_cast<std::size_t>(d)]; }

}  // namespace sextant
