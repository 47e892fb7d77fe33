#include "planner/adaptation/machine_belief.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/cluster/rank_grid.hpp"

namespace sextant {
namespace {

constexpr double kSound = 0.05;  // a part within this share of what it should be is sound

template <class Key>
void multiply(std::map<Key, double>& times, const Key& key, double by) {
  double& t = times.try_emplace(key, 1.0).first->second;
  t *= by;
  if (t < 1 + kSound) times.erase(key);  // not slower than it was given
}

}  // namespace

double MachineBelief::compute_times(const GpuPlace& gpu) const {
  const auto found = compute_.find(gpu);
  return found == compute_.end() ? 1 : found->second;
}

double MachineBelief::network_times(int node) const {
  const auto found = network_.find(node);
  return found == network_.end() ? 1 : found->second;
}

ClusterSpec MachineBelief::cluster() const {
  ClusterSpec now = given_;
  const auto given = defective_nodes(given_);
  for (const auto& [gpu, times] : compute_) {
    Defect d;
    d.node = gpu.node;
    d.gpu = gpu.gpu;
    d.compute_factor = state_of(given, gpu).compute / times;
    now.defects.push_back(d);
  }
  for (const auto& [node, times] : network_) {
    Defect d;
    d.node = node;
    d.network_factor = state_of(given, {node, 0}).network / times;
    now.defects.push_back(d);
  }
  for (const GpuPlace& gpu : lost_) now.defects.push_back(missing(gpu));
  return now;
}

ExpectedStep MachineBelief::expected(const ParallelPlan& plan, const ClusterSpec& used) const {
  ExpectedStep step;
  const RankGrid grid(plan);
  const auto given = defective_nodes(given_);
  const std::vector<GpuPlace> gpus = usable_gpus(used);
  for (int rank = 0; rank < plan.world(); ++rank) {
    const GpuPlace& gpu = gpus[static_cast<std::size_t>(rank)];
    step.compute.push_back(compute_times(gpu) / state_of(given, gpu).compute);
    step.stage.push_back(grid.coord(rank).pp);
  }
  for (int node = 0; node < given_.nodes; ++node)
    step.network.push_back(network_times(node) / state_of(given, {node, 0}).network);
  return step;
}

void MachineBelief::take(const Drift& drift, const ClusterSpec& used) {
  const std::vector<GpuPlace> gpus = usable_gpus(used);
  for (const Drift::Part& part : drift.ranks)
    multiply(compute_, gpus[static_cast<std::size_t>(part.index)], part.times);
  for (const Drift::Part& part : drift.nodes) multiply(network_, part.index, part.times);
}

std::vector<std::string> MachineBelief::lines(const Drift& drift, const ClusterSpec& used) {
  std::vector<std::string> lines;
  const std::vector<GpuPlace> gpus = usable_gpus(used);
  for (const Drift::Part& part : drift.ranks) {
    const GpuPlace& gpu = gpus[static_cast<std::size_t>(part.index)];
    lines.push_back(fmt::format("rank {} (node {}, GPU {}) computes {:.2f} times as long as expected",
                                part.index, gpu.node, gpu.gpu, part.times));
  }
  for (const Drift::Part& part : drift.nodes)
    lines.push_back(
        fmt::format("communication of node {} with other nodes takes {:.2f} times as long as expected",
                    part.index, part.times));
  if (drift.everything != 1)
    lines.push_back(fmt::format("all ranks compute {:.2f} times as long as before", drift.everything));
  return lines;
}

ClusterSpec keep_fastest(const ClusterSpec& cluster, int gpus) {
  const auto defective = defective_nodes(cluster);
  std::vector<GpuPlace> worst_first = usable_gpus(cluster);
  std::ranges::reverse(worst_first);
  std::ranges::stable_sort(worst_first, {}, [&](const GpuPlace& gpu) {
    const GpuState s = state_of(defective, gpu);
    return std::min(s.compute, s.network);
  });
  ClusterSpec kept = cluster;
  for (std::size_t i = 0; i + static_cast<std::size_t>(gpus) < worst_first.size(); ++i)
    kept.defects.push_back(missing(worst_first[i]));
  return kept;
}

ClusterSpec with_none_missing(ClusterSpec cluster) {
  std::erase_if(cluster.defects, [](const Defect& d) { return d.missing; });
  return cluster;
}

}  // namespace sextant
