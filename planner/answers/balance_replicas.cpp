#include "planner/answers/balance_replicas.hpp"

#include <algorithm>
#include <queue>
#include <set>
#include <string>

#include "core/base/error.hpp"

namespace sextant {

std::vector<int> balanced_microbatches(std::span<const double> times, int total, double filling) {
  SEXTANT_CHECK(!times.empty() && total >= static_cast<int>(times.size()), "a micro-batch for each replica");
  std::vector<int> counts(times.size(), 1);
  // One after the other goes to the replica that would be done with it first.
  using Done = std::pair<double, std::size_t>;
  std::priority_queue<Done, std::vector<Done>, std::greater<>> next;
  for (std::size_t r = 0; r < times.size(); ++r) next.emplace(times[r] * (2 + filling), r);
  for (int given = static_cast<int>(times.size()); given < total; ++given) {
    const std::size_t r = next.top().second;
    next.pop();
    ++counts[r];
    next.emplace(times[r] * (counts[r] + 1 + filling), r);
  }
  return counts;
}

std::optional<ParallelPlan> balanced(const Job& job, ParallelPlan plan) {
  plan.replica_microbatches.clear();
  if (!degrees_fit(plan) || plan.world() > job.topology.ranks() ||
      job.training.global_batch % plan.micro_batch != 0)
    return std::nullopt;
  const int total = job.training.global_batch / plan.micro_batch;
  if (total < plan.dp) return std::nullopt;
  std::vector<double> times(static_cast<std::size_t>(plan.dp), 1.0);
  const RankGrid grid(plan);
  for (int rank = 0; rank < plan.world(); ++rank) {
    double& time = times[static_cast<std::size_t>(grid.coord(rank).dp)];
    time = std::max(time, 1 / job.topology.compute_factor(rank));
  }
  std::vector<int> counts = balanced_microbatches(times, total, static_cast<double>(plan.pp - 1) / plan.vp);
  if (std::ranges::min(counts) < std::ranges::max(counts)) plan.replica_microbatches = std::move(counts);
  if (unlawful(job, plan)) return std::nullopt;
  return plan;
}

std::optional<BalancedPlan> best_balanced(const Job& job, std::span<const ParallelPlan> shapes) {
  std::optional<BalancedPlan> best;
  std::set<std::string> seen;
  for (ParallelPlan shape : shapes) {
    if (shape.parameter_offload) continue;
    if (shape.zero_stage > 1) shape.zero_stage = 1;
    shape.dp = job.topology.ranks() / (shape.tp * shape.cp * shape.pp);
    if (shape.dp < 2) continue;
    shape.shard_degree = 0;  // which need not divide so many replicas
    for (; shape.micro_batch >= 1; shape.micro_batch /= 2) {
      const std::optional<ParallelPlan> plan = balanced(job, shape);
      if (!plan || !seen.insert(plan_key(*plan)).second || too_large(job, plan_memory(job, *plan))) continue;
      Prediction p = predict(job, *plan);
      if (!best || p.step < best->prediction.step) best = BalancedPlan{*plan, std::move(p)};
    }
  }
  return best;
}

}  // namespace sextant
