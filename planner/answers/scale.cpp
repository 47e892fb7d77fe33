#include "planner/answers/scale.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "planner/answers/lowest_memory.hpp"
#include "planner/answers/sub_cluster.hpp"
#include "planner/search/search_budget.hpp"

namespace sextant {
namespace {

constexpr int kSizesBetween = 32;
constexpr double kLowestMemorySearch_s = 10;
constexpr double kMovesGain = 1.15;  // what is so much slower may still be moved to where it holds

template <class F>
auto on_size(const Job& job, int gpus, F ask) {
  const ClusterSpec cluster = sub_cluster(job.cluster, gpus);
  const Topology topology(cluster);
  return ask(job.on(cluster, topology));
}

ScalePoint at_size(const Job& job, int gpus, const PlanLimits& limits, const SearchOptions& options,
                   const DecisionBasis* basis = nullptr) {
  return on_size(job, gpus, [&](const Job& sized) {
    const SearchBudget budget(options);
    ScalePoint out{gpus,
                   search(sized, default_space(job.model, job.training, job.cluster.device, gpus, limits),
                          basis ? for_fastest(options) : options),
                   0};
    if (basis && !out.report.ranked.empty())
      out.recommended = recommend(sized, limits, out.report, *basis, budget.next(), !budget.over()).plan;
    return out;
  });
}

// Fewer GPUs take longer even at their peak.
int fewest_by_peak(const Job& job, std::optional<Seconds> deadline) {
  double peak = 0;
  for (const auto& [dtype, flops] : job.cluster.device.peak) peak = std::max(peak, flops.v);
  if (!deadline || peak <= 0) return 1;
  const double tokens = static_cast<double>(job.training.global_batch) * job.training.seq_len;
  const double gpus = tokens *
                      model_flops_per_token(job.model, job.training.seq_len, AttentionFlops::causal) /
                      (peak * deadline->v);
  return static_cast<int>(std::clamp(std::floor(gpus), 1.0, static_cast<double>(kMaxWorld)));
}

enum class Holds : std::uint8_t { no, yes, unknown };

// Whether that many GPUs do: only that is asked, so that a search need not look at what is slower; up to `moved_from` times as
// slow, from where it may be moved off the search grid to where it holds.
Holds holds(const Job& job, int gpus, std::optional<Seconds> deadline, const PlanLimits& limits,
            SearchOptions how, double moved_from = 1) {
  return on_size(job, gpus, [&](const Job& sized) {
    const SearchSpace space = default_space(job.model, job.training, job.cluster.device, gpus, limits);
    if (!deadline) {
      const LowestMemoryLayout any = any_layout(sized, space, how);
      return any.plan ? Holds::yes : any.exact ? Holds::no : Holds::unknown;
    }
    how.at_most = simulated_of(sized, gpus, *deadline * moved_from);
    const SearchReport report = search(sized, space, how);
    if (!report.ranked.empty() && report.ranked.front().prediction.step <= *deadline) return Holds::yes;
    return report.exact ? Holds::no : Holds::unknown;
  });
}

// Whole nodes above `from`, which does not do: the fewest that were found to hold, or nothing.
template <class Ask>
std::optional<int> coarse_search(int from, int most, int per_node, const Ask& ask) {
  const int first = from / per_node + 1;
  std::vector<int> sizes;
  for (int nodes = first; nodes * per_node < most; nodes *= 2) sizes.push_back(nodes * per_node);
  sizes.push_back(most);
  int lower = from, upper = 0;
  for (const int n : sizes) {
    if (ask(n)) {
      upper = n;
      break;
    }
    lower = n;
  }
  // The largest size may divide badly where a smaller one does not: those behind the last power of two are tried too.
  const bool most_fails = upper == 0;
  if (most_fails) {
    upper = most;
    lower = sizes.size() > 1 ? sizes[sizes.size() - 2] : from;
  }
  const int nodes_between = (upper - lower) / per_node;
  const int stride = per_node * std::max(1, (nodes_between + kSizesBetween - 1) / kSizesBetween);
  for (int n = lower / per_node * per_node + stride; n < upper; n += stride)
    if (ask(n)) return n;
  return most_fails ? std::nullopt : std::optional(upper);
}

}  // namespace

std::vector<ScalePoint> scaling_curve(const Job& job, const std::vector<int>& gpus, const PlanLimits& limits,
                                      const SearchOptions& options, const DecisionBasis* basis) {
  const SearchBudget budget(options);
  std::vector<ScalePoint> out;
  double reference = 0;
  int smallest = 0;
  for (const int n : gpus) {
    if (budget.over()) break;
    out.push_back(
        at_size(job, n, limits, budget.next(basis ? std::max(kJudged, options.top) : options.top), basis));
    if (out.back().report.ranked.empty()) continue;
    if (smallest == 0 || n < smallest) {
      smallest = n;
      reference = out.back().best().prediction.tokens_per_s_gpu;
    }
  }
  for (ScalePoint& point : out)
    if (!point.report.ranked.empty()) point.efficiency = point.best().prediction.tokens_per_s_gpu / reference;
  return out;
}

std::optional<ScalePoint> faster_on_fewer(const Job& job, Seconds step, const PlanLimits& limits,
                                          const SearchOptions& options) {
  const SearchBudget budget(options);
  const int gpus = job.cluster.gpus(), per_node = std::max(1, job.cluster.node.gpus);
  // Without the slow nodes first: where they are slow enough to be left out at all, that gains most.
  std::vector<int> sizes = gpus_without_slow_nodes(job.cluster);
  std::ranges::reverse(sizes);
  std::vector<int> whole = sizes;
  whole.insert(whole.begin(), gpus);
  for (const int n : whole) {
    sizes.push_back(n / per_node * per_node);
    for (int multiple = 2; multiple <= n; multiple *= 2) sizes.push_back(n / multiple * multiple);
  }
  std::set<int> tried = {0, gpus};
  std::optional<ScalePoint> best;
  for (const int n : sizes) {
    if (!tried.insert(n).second) continue;
    if (budget.over()) break;
    SearchOptions how = budget.next();
    how.at_most = simulated_of(job, n, step);
    ScalePoint point = at_size(job, n, limits, how);
    if (point.report.ranked.empty() || point.report.ranked.front().prediction.step >= step) continue;
    step = point.report.ranked.front().prediction.step;
    best = std::move(point);
  }
  return best;
}

FewestGpus fewest_gpus(const Job& job, std::optional<Seconds> deadline, int most, const PlanLimits& limits,
                       const SearchOptions& options, double every_s) {
  const SearchBudget budget(options);
  SearchOptions each = options;
  each.budget_s = options.budget_s > 0 ? std::min(options.budget_s, every_s) : every_s;
  const SearchBudget every(each);
  FewestGpus out;
  std::optional<int> found;
  out.every_to = std::min(most, fewest_by_peak(job, deadline) - 1);
  while (!found && out.every_to < most && !every.over()) {
    const Holds answer = holds(job, out.every_to + 1, deadline, limits, every.next());
    if (answer == Holds::unknown) break;
    if (answer == Holds::yes)
      found = out.every_to + 1;
    else
      ++out.every_to;
  }
  out.next_smaller = out.every_to;
  if (!found && out.every_to < most) {
    out.exact = false;
    std::set<int> too_few = {out.every_to};
    const auto ask = [&](int n) {
      const Holds answer = budget.over() ? Holds::unknown : holds(job, n, deadline, limits, budget.next());
      if (answer == Holds::no) too_few.insert(n);
      if (answer == Holds::unknown) out.in_time = false;
      return answer == Holds::yes;
    };
    found = coarse_search(out.every_to, most, std::max(1, job.cluster.node.gpus), ask);
    out.next_smaller = *std::prev(too_few.upper_bound(found.value_or(most)));
  }
  out.exact = out.exact || found == out.every_to + 1;
  // What is moved may do on a little fewer.
  if (deadline && (found || out.every_to == most)) {
    each.budget_s = every_s;
    const SearchBudget moving(each);
    const int above = found.value_or(most + 1);
    for (int n = std::max(1, above / 2); n < above && !moving.over() && !budget.over(); ++n)
      if (holds(job, n, deadline, limits, moving.next(), kMovesGain) == Holds::yes) {
        found = n;
        out.next_smaller = std::min(out.next_smaller, n - 1);
        break;
      }
  }
  // Of millions of GPUs the cluster alone takes seconds to be made.
  if (options.cancel && options.cancel->load()) return out;
  ScalePoint point = at_size(job, found.value_or(most), limits, budget.next(found ? options.top : 1));
  if (point.report.ranked.empty()) return out;
  // Where time ran out before, that alone says whether all of them do.
  const bool all_do = !deadline || point.report.ranked.front().prediction.step <= *deadline;
  (found || all_do ? out.found : out.most) = std::move(point);
  return out;
}

FewestGpus fewest_usual_gpus(const Job& job, std::optional<Seconds> deadline, int most,
                             const PlanLimits& limits, const EvidenceTable& evidence,
                             const SearchOptions& options) {
  const SearchBudget budget(options);
  std::optional<FewestGpus> fewest;
  const auto better = [](const ScalePoint& a, const ScalePoint& b) {
    return std::pair(a.gpus, a.best().prediction.step) < std::pair(b.gpus, b.best().prediction.step);
  };
  StackSpec equal_stages = job.stack;
  UnevenStages& uneven = equal_stages.can.uneven_stages;
  // Of other numbers of layers embedding and head are counted as one each (usual_limits), which is an uneven cut.
  if (job.model.n_layers % 4 != 2 && (uneven == UnevenStages::any || uneven == UnevenStages::ends))
    uneven = UnevenStages::none;
  const Job usual = job.with(equal_stages);
  for (const PlanLimits& within : advised_limits(job.stack, usual_limits(job, limits, evidence))) {
    if (default_space(job.model, job.training, job.cluster.device, most, within).size() == 0) continue;
    const int at_most = fewest && fewest->found ? fewest->found->gpus : most;
    FewestGpus next = fewest_gpus(usual, deadline, at_most, within, budget.next(options.top));
    if (!fewest) {
      fewest = std::move(next);
      continue;
    }
    if (next.found && (!fewest->found || better(*next.found, *fewest->found)))
      fewest->found = std::move(next.found);
    fewest->next_smaller = std::min(fewest->next_smaller, next.next_smaller);
    fewest->every_to = std::min(fewest->every_to, next.every_to);
    fewest->exact = fewest->exact && next.exact;
    fewest->in_time = fewest->in_time && next.in_time;
  }
  if (!fewest) return {};
  fewest->usual = fewest->found && unusual_features(job, evidence, fewest->found->best().plan).empty();
  return std::move(*fewest);
}

const ScalePoint* cheapest(const std::vector<ScalePoint>& curve) {
  const ScalePoint* best = nullptr;
  const auto price = [](const ScalePoint& p) { return p.best().prediction.usd_per_million_tokens; };
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
    const auto g = goodput(job, point.best().plan, point.best().prediction.step, kind);
    if (g && g->tokens_per_s > most) {
      best = &point;
      most = g->tokens_per_s;
    }
  }
  return best;
}

LowestMemoryPlans lowest_memory_plans(const Job& job, const SearchSpace& space,
                                      const SearchOptions& options) {
  const SearchBudget budget(options);
  LowestMemoryPlans out;
  const LowestMemoryLayout lean = lowest_memory_layout(job, space, options);
  if (!lean.plan) {
    out.report = search(job, space, budget.next());
    return out;
  }
  SearchOptions how = budget.next(options.top);
  how.memory_limit = lean.peak;
  how.move_layers = false;
  how.budget_s = how.budget_s > 0 ? std::min(how.budget_s, kLowestMemorySearch_s) : kLowestMemorySearch_s;
  out.report = search(job, lean.equals, how);
  // The others' outcomes where nothing fits.
  how.memory_limit = Bytes(0);
  const SearchReport all = search(job, space, how);
  const OutcomeCounts part = search(job, lean.equals, how).outcomes;
  for (std::size_t i = 0; i < part.by_outcome.size(); ++i)
    out.report.outcomes.by_outcome[i] += all.outcomes.by_outcome[i] - part.by_outcome[i];
  out.report.space = all.space;
  out.limit = lean.peak;
  out.needs_more = lean.exact ? Bytes(lean.peak.v - 1) : lean.floor;
  out.proved = lean.exact;
  if (!lean.exact) {
    out.report.exact = false;
    out.report.stopped = lean.stopped;
  }
  return out;
}

}  // namespace sextant
