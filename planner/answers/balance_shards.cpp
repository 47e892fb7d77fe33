#include "planner/answers/balance_shards.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/base/error.hpp"

namespace sextant {
namespace {

// Of the step. Below it the price of unequal exchanges decides, which libraries carry out as one reduction or broadcast for each
// rank, and that nobody has measured.
constexpr double kLeastGain = 0.01;

// Of each shard the speed of its slowest rank: on any stage, of any replica that holds the same.
std::vector<double> shard_speeds(const Job& job, const ParallelPlan& plan) {
  std::vector<double> speeds(static_cast<std::size_t>(plan.shards()), 1.0);
  const RankGrid grid(plan);
  for (int rank = 0; rank < plan.world(); ++rank) {
    double& speed = speeds[static_cast<std::size_t>(shard_of(plan, grid.coord(rank)))];
    speed = std::min(speed, job.topology.compute_factor(rank));
  }
  return speeds;
}

}  // namespace

std::vector<int> balanced_weights(std::span<const double> speeds, int most) {
  SEXTANT_CHECK(!speeds.empty() && most >= 1 && most <= kMaxShardWeight, "a speed for each shard");
  const double fastest = std::ranges::max(speeds);
  std::vector<int> weights;
  int common = 0;
  for (const double speed : speeds) {
    weights.push_back(std::max(1, static_cast<int>(std::lround(most * speed / fastest))));
    common = std::gcd(common, weights.back());
  }
  for (int& weight : weights) weight /= common;
  if (std::ranges::max(weights) == std::ranges::min(weights)) return {};
  return weights;
}

std::optional<ParallelPlan> with_balanced_shards(const Job& job, ParallelPlan plan) {
  plan.shard_weights.clear();
  if (!job.stack.can.uneven_shards || plan.shards() < 2 || plan.world() > job.topology.ranks())
    return std::nullopt;
  const std::vector<double> speeds = shard_speeds(job, plan);
  std::set<std::vector<int>> weights;
  for (const int most : {2, 3, 4, 6, 8, 12, 16})
    if (auto some = balanced_weights(speeds, most); !some.empty()) weights.insert(std::move(some));
  if (weights.empty()) return std::nullopt;
  std::optional<ParallelPlan> best;
  Seconds shortest = predict(job, plan).step * (1 - kLeastGain);
  for (const std::vector<int>& some : weights) {
    ParallelPlan tried = plan;
    tried.shard_weights = some;
    if (unlawful(job, tried) || too_large(job, plan_memory(job, tried))) continue;
    if (const Seconds step = predict(job, tried).step; step < shortest) {
      shortest = step;
      best = std::move(tried);
    }
  }
  return best;
}

}  // namespace sextant
