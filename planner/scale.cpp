#include "planner/scale.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "planner/leanest.hpp"
#include "planner/search_budget.hpp"

namespace sextant {
namespace {

constexpr int kSizesBetween = 32;
constexpr double kLeanestSearch_s = 10;

template <class F>
auto on_size(const Job& job, int gpus, F ask) {
  const ClusterSpec cluster = resized(job.cluster, gpus);
  const Topology topology(cluster);
  return ask(Job{job.model, job.training, cluster, topology, job.stack, job.cost});
}

ScalePoint at_size(const Job& job, int gpus, const PlanLimits& limits, const SearchOptions& options) {
  return on_size(job, gpus, [&](const Job& sized) {
    return ScalePoint{gpus, search(sized, default_space(job.model, job.training, gpus, limits), options), 0};
  });
}

// The simulated step that a user measures as `step`.
Seconds simulated_of(const Job& job, int gpus, Seconds step) {
  return on_size(job, gpus, [&](const Job& sized) {
    ParallelPlan plan;
    plan.dp = gpus;
    const Seconds fixed = measured_step(sized, plan, Seconds(0));
    return Seconds((step - fixed) / (measured_step(sized, plan, Seconds(1)) - fixed));
  });
}

}  // namespace

ClusterSpec resized(const ClusterSpec& cluster, int gpus) {
  ClusterSpec out = cluster;
  const int per_node = std::max(1, cluster.node.gpus);
  out.nodes = std::max(1, (gpus + per_node - 1) / per_node);
  const int per_leaf = out.fabric.leaf_nodes;
  std::erase_if(out.defects, [&](const Defect& d) {
    if (d.leaf < 0) return d.node >= out.nodes;
    return per_leaf >= out.nodes || d.leaf * per_leaf >= out.nodes;
  });
  while (out.gpus() < gpus) ++out.nodes;  // missing GPUs are made up for
  return out;
}

std::vector<ScalePoint> scaling_curve(const Job& job, const std::vector<int>& gpus, const PlanLimits& limits,
                                      const SearchOptions& options) {
  const SearchBudget budget(options);
  std::vector<ScalePoint> out;
  double reference = 0;
  int smallest = 0;
  for (const int n : gpus) {
    if (budget.over()) break;
    out.push_back(at_size(job, n, limits, budget.next(options.top)));
    if (out.back().report.ranked.empty()) continue;
    if (smallest == 0 || n < smallest)
      smallest = n, reference = out.back().report.ranked.front().prediction.tokens_per_s_gpu;
  }
  for (ScalePoint& point : out)
    if (!point.report.ranked.empty())
      point.efficiency = point.report.ranked.front().prediction.tokens_per_s_gpu / reference;
  return out;
}

std::optional<ScalePoint> faster_on_fewer(const Job& job, Seconds step, const PlanLimits& limits,
                                          const SearchOptions& options) {
  const int gpus = job.cluster.gpus(), per_node = std::max(1, job.cluster.node.gpus);
  if (gpus == job.cluster.nodes * per_node) return std::nullopt;
  std::set<int> sizes;
  for (const int multiple : {2, 4, per_node})
    if (const int n = gpus / multiple * multiple; n > 0 && n < gpus) sizes.insert(n);
  std::optional<ScalePoint> best;
  for (ScalePoint& point : scaling_curve(job, {sizes.begin(), sizes.end()}, limits, options)) {
    if (point.report.ranked.empty() || point.report.ranked.front().prediction.step >= step) continue;
    step = point.report.ranked.front().prediction.step;
    best = std::move(point);
  }
  return best;
}

FewestGpus fewest_gpus(const Job& job, std::optional<Seconds> deadline, int most, const PlanLimits& limits,
                       const SearchOptions& options) {
  const SearchBudget budget(options);
  const int per_node = std::max(1, job.cluster.node.gpus);
  FewestGpus out;
  // Whether that many GPUs do: only that is asked, so that a search need not look at what is slower.
  const auto holds = [&](int n) {
    ++out.tried;
    SearchOptions how = deadline ? budget.next() : budget.any();
    if (deadline) how.at_most = simulated_of(job, n, *deadline);
    const ScalePoint point = at_size(job, n, limits, how);
    if (deadline && !point.report.exact) out.exact = false;
    return !point.report.ranked.empty() &&
           (!deadline || point.report.ranked.front().prediction.step <= *deadline);
  };
  // Doubling finds the range; more nodes never fit worse, but some sizes divide the batch badly, so that every size
  // from the last that did not hold is tried.
  std::vector<int> sizes;
  for (int n = 1; n < std::min(per_node, most + 1); n *= 2) sizes.push_back(n);
  for (int nodes = 1; nodes * per_node <= most; nodes *= 2) sizes.push_back(nodes * per_node);
  if (sizes.empty() || sizes.back() < most) sizes.push_back(most);
  int lower = 0, upper = 0;
  for (const int n : sizes) {
    if (budget.over()) break;
    if (holds(n)) {
      upper = n;
      break;
    }
    lower = n;
  }
  if (budget.over()) out.exact = false;
  // The largest size may divide badly where a smaller one does not: those behind the last power of two are tried too.
  const bool most_fails = upper == 0;
  if (most_fails) upper = most, lower = sizes.size() > 1 ? sizes[sizes.size() - 2] : 0;
  const int nodes_between = (upper - lower) / per_node;
  const int stride = per_node * std::max(1, (nodes_between + kSizesBetween - 1) / kSizesBetween);
  out.next_smaller = lower;
  for (int n = (lower / per_node) * per_node + stride; n < upper; n += stride) {
    if (budget.over()) {
      out.exact = false;
      break;
    }
    if (holds(n))
      upper = n;
    else
      out.next_smaller = n;
  }
  if (most_fails && upper == most) {
    out.next_smaller = most;
    ScalePoint all = at_size(job, most, limits, budget.next());
    if (!all.report.ranked.empty()) out.most = std::move(all);
    return out;
  }
  out.found = at_size(job, upper, limits, budget.next(options.top));
  return out;
}

const ScalePoint* cheapest(const std::vector<ScalePoint>& curve) {
  const ScalePoint* best = nullptr;
  const auto price = [](const ScalePoint& p) {
    return p.report.ranked.front().prediction.usd_per_million_tokens;
  };
  for (const ScalePoint& point : curve)
    if (!point.report.ranked.empty() && price(point) > 0 && (!best || price(point) < price(*best)))
      best = &point;
  return best;
}

const ScalePoint* most_lasting(const Job& job, const std::vector<ScalePoint>& curve, SaveKind kind) {
  const ScalePoint* best = nullptr;
  double most = 0;
  for (const ScalePoint& point : curve) {
    if (point.report.ranked.empty()) continue;
    const RankedPlan& fastest = point.report.ranked.front();
    const auto g = goodput(job, fastest.plan, fastest.prediction.step, kind);
    if (g && g->tokens_per_s > most) best = &point, most = g->tokens_per_s;
  }
  return best;
}

LeanestPlans leanest_plans(const Job& job, const SearchSpace& space, const SearchOptions& options) {
  const SearchBudget budget(options);
  LeanestPlans out;
  const LeanestLayout lean = leanest_layout(job, space, options);
  if (!lean.plan) {
    out.report = search(job, space, budget.next());
    return out;
  }
  SearchOptions how = budget.next(options.top);
  how.memory_limit = lean.peak;
  how.budget_s = how.budget_s > 0 ? std::min(how.budget_s, kLeanestSearch_s) : kLeanestSearch_s;
  out.report = search(job, lean.equals, how);
  // The others' fates where nothing fits.
  how.memory_limit = Bytes(0);
  const SearchReport all = search(job, space, how);
  const FateCounts part = search(job, lean.equals, how).fates;
  for (std::size_t i = 0; i < part.by_fate.size(); ++i)
    out.report.fates.by_fate[i] += all.fates.by_fate[i] - part.by_fate[i];
  out.report.space = all.space;
  out.limit = lean.peak, out.needs_more = lean.exact ? Bytes(lean.peak.v - 1) : lean.floor;
  out.proved = lean.exact;
  if (!lean.exact) out.report.exact = false, out.report.stopped = lean.stopped;
  return out;
}

}  // namespace sextant
