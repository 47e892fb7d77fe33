#include "planner/answers/robust_plans.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <tbb/parallel_for.h>

#include "planner/search/search_budget.hpp"
#include "planner/simulation/robust.hpp"

namespace sextant {
namespace {

constexpr int kSampled = 30;  // layout families

// The layouts that are best on a network as slow as in one step of ten, or as in the mean of its times: what bears a varying
// network may lie far below the best on a steady one.
std::vector<RankedPlan> best_on_slow_network(const Job& job, const SearchSpace& space, RankBy by,
                                             const SearchOptions& options) {
  const double sigma = job.cluster.jitter.network_sigma;
  if (sigma <= 0) return {};
  // Of a lognormal factor of mean 1: the 10th percentile, or the inverse of the mean of its inverse.
  const double factor = std::exp(by == RankBy::p90 ? -1.2816 * sigma - 0.5 * sigma * sigma : -sigma * sigma);
  ClusterSpec slow = job.cluster;
  slow.fabric.bandwidth = slow.fabric.bandwidth * factor;
  slow.node.nic_bandwidth = slow.node.nic_bandwidth * factor;
  const Topology topology(slow);
  return search({job.model, job.training, slow, topology, job.stack, job.cost, job.interval, job.uncertainty,
                 job.residual},
                space, options)
      .ranked;
}

void sample(const Job& job, RankBy by, std::vector<RankedPlan>& plans) {
  tbb::parallel_for(std::size_t{0}, plans.size(), [&](std::size_t i) {
    if (Prediction& p = plans[i].prediction; !p.jitter)
      p = expected(p, robust_step(job, plans[i].plan, job.cluster.jitter));
  });
  std::stable_sort(plans.begin(), plans.end(), [&](const RankedPlan& a, const RankedPlan& b) {
    return ranked_step(a.prediction, by) < ranked_step(b.prediction, by);
  });
}

}  // namespace

SteadyPlans robust_plans(const Job& job, const SearchSpace& space, RankBy by, const SearchOptions& options) {
  const bool varies = by != RankBy::undisturbed && job.cluster.jitter != JitterSpec{};
  const SearchBudget budget(options);
  SteadyPlans found;
  found.report = search(job, space, varies ? budget.next(1) : options);
  if (found.report.ranked.empty()) return found;
  found.undisturbed = found.report.ranked.front();
  found.proved = found.report.exact;
  if (!varies) return found;
  std::vector<RankedPlan> ranked = found.report.ranked;
  sample(job, by, ranked);
  // What is slower without jitter than the steady best is with it cannot be better.
  const ParallelPlan& steady_best = found.undisturbed.plan;
  const Seconds fixed = measured_step(job, steady_best, Seconds(0));
  const int n = std::max(kSampled, 2 * options.top);
  SearchOptions how = budget.next(n);
  how.at_most = Seconds((ranked_step(ranked.front().prediction, by) - fixed) /
                        (measured_step(job, steady_best, Seconds(1)) - fixed));
  // Nothing comes back when it is stopped at once.
  if (SearchReport more = search(job, space, how); !more.ranked.empty()) found.report = std::move(more);
  found.undisturbed = found.report.ranked.front();
  const bool all = static_cast<int>(found.report.ranked.size()) < n;
  const Seconds not_listed = found.report.ranked.back().prediction.step;
  ranked = found.report.ranked;
  for (RankedPlan& slow : best_on_slow_network(job, space, by, budget.next(options.top))) {
    if (std::ranges::any_of(ranked, [&](const RankedPlan& r) { return r.plan == slow.plan; })) continue;
    slow.prediction = predict(job, slow.plan);
    slow.simulated = slow.prediction.step;
    slow.before_moves.reset();
    slow.before_refinement.reset();
    ranked.push_back(std::move(slow));
  }
  sample(job, by, ranked);
  found.sampled = ranked.size();
  const Seconds best = ranked_step(ranked.front().prediction, by);
  found.proved = found.report.exact && (all || not_listed >= best);
  ranked.resize(std::min(ranked.size(), static_cast<std::size_t>(options.top)));
  for (RankedPlan& r : ranked) {
    r.slower = ranked_step(r.prediction, by) / best - 1;
    r.tie = &r != &ranked.front() && r.slower < options.tie_share;
  }
  found.report.ranked = std::move(ranked);
  return found;
}

}  // namespace sextant
