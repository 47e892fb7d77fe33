#include "planner/scale.hpp"

#include <algorithm>

namespace sextant {
namespace {

ClusterSpec resized(const ClusterSpec& cluster, int gpus) {
  ClusterSpec out = cluster;
  const int per_node = std::max(1, cluster.node.gpus);
  out.nodes = std::max(1, (gpus + per_node - 1) / per_node);
  std::erase_if(out.defects, [&](const Defect& d) { return d.node >= out.nodes; });
  while (out.gpus() < gpus) ++out.nodes;  // missing GPUs are made up for
  return out;
}

ScalePoint at_size(const Job& job, int gpus, const PlanLimits& limits, const SearchOptions& options) {
  const ClusterSpec cluster = resized(job.cluster, gpus);
  const Topology topology(cluster);
  const Job sized{job.model, job.training, cluster, topology, job.stack, job.cost};
  return {gpus, search(sized, default_space(job.model, job.training, gpus, limits), options), 0};
}

}  // namespace

std::vector<ScalePoint> scaling_curve(const Job& job, const std::vector<int>& gpus, const PlanLimits& limits,
                                      const SearchOptions& options) {
  std::vector<ScalePoint> out;
  double reference = 0;
  int smallest = 0;
  for (const int n : gpus) {
    out.push_back(at_size(job, n, limits, options));
    if (out.back().report.ranked.empty()) continue;
    if (smallest == 0 || n < smallest)
      smallest = n, reference = out.back().report.ranked.front().prediction.tokens_per_s_gpu;
  }
  for (ScalePoint& point : out)
    if (!point.report.ranked.empty())
      point.efficiency = point.report.ranked.front().prediction.tokens_per_s_gpu / reference;
  return out;
}

std::optional<ScalePoint> fewest_gpus(const Job& job, std::optional<Seconds> deadline, int most,
                                      const PlanLimits& limits, const SearchOptions& options) {
  const int per_node = std::max(1, job.cluster.node.gpus);
  SearchOptions one = options;
  one.top = 1;
  const auto holds = [&](const ScalePoint& point) {
    return !point.report.ranked.empty() &&
           (!deadline || point.report.ranked.front().prediction.step <= *deadline);
  };
  std::vector<int> sizes;
  for (int n = 1; n < per_node; n *= 2) sizes.push_back(n);
  // Doubling finds the range; more nodes never fit worse, but some sizes divide the batch badly, so that every size
  // from the last that did not hold is tried.
  int upper = 0;
  for (int nodes = 1; nodes * per_node <= most; nodes *= 2) sizes.push_back(nodes * per_node);
  if (sizes.empty() || sizes.back() < most) sizes.push_back(most);
  int lower = 0;
  std::optional<ScalePoint> found;
  for (const int n : sizes) {
    if (n > most) break;
    ScalePoint point = at_size(job, n, limits, one);
    if (holds(point)) {
      found = std::move(point), upper = n;
      break;
    }
    lower = n;
    if (options.cancel && options.cancel->load()) return std::nullopt;
  }
  for (int n = (lower / per_node + 1) * per_node; found && n < upper; n += per_node) {
    ScalePoint point = at_size(job, n, limits, one);
    if (holds(point)) return point;
    if (options.cancel && options.cancel->load()) break;
  }
  return found;
}

std::optional<ScalePoint> cheapest_tokens(const Job& job, const std::vector<int>& gpus,
                                          const PlanLimits& limits, const SearchOptions& options) {
  std::optional<ScalePoint> best;
  const auto price = [](const ScalePoint& p) {
    return p.report.ranked.front().prediction.usd_per_million_tokens;
  };
  for (ScalePoint& point : scaling_curve(job, gpus, limits, options)) {
    if (point.report.ranked.empty() || price(point) <= 0) continue;
    if (!best || price(point) < price(*best)) best = std::move(point);
  }
  return best;
}

std::vector<RankedPlan> pareto_front(const Job& job, const SearchSpace& space, const SearchOptions& options,
                                     double step) {
  std::vector<RankedPlan> out;
  SearchOptions capped = options;
  capped.top = 1;
  while (!(options.cancel && options.cancel->load())) {
    SearchReport report = search(job, space, capped);
    if (report.ranked.empty()) break;
    out.push_back(std::move(report.ranked.front()));
    out.back().slower = out.back().prediction.step / out.front().prediction.step - 1;
    const auto peak = static_cast<double>(out.back().prediction.memory.peak.v);
    capped.memory_limit = Bytes(static_cast<std::int64_t>(peak * (1 - std::max(step, 1e-6))));
  }
  return out;
}

}  // namespace sextant
