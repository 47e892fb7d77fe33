#include "planner/answers/sub_cluster.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sextant {
namespace {

constexpr std::size_t kMostSizes = 6;

// What a node does to a job that waits for its slowest rank: a slow device counts in full, slow links by half, since much
// of what they carry runs beside compute. A GPU that is missing slows nobody.
struct Harm {
  double slows = 0;
  std::set<int> missing;
  std::pair<double, std::size_t> order() const { return {slows, missing.size()}; }
  int gpus(const ClusterSpec& cluster) const { return cluster.node.gpus - static_cast<int>(missing.size()); }
};

std::vector<Harm> harm_of_nodes(const ClusterSpec& cluster) {
  std::vector<Harm> harm(static_cast<std::size_t>(cluster.nodes));
  for (const Defect& d : cluster.defects) {
    if (d.node < 0) continue;
    Harm& node = harm[static_cast<std::size_t>(d.node)];
    if (!d.missing)
      node.slows = std::max(
          {node.slows, 1 - d.compute_factor, (1 - std::min(d.node_link_factor, d.network_factor)) / 2});
    for (int gpu = 0; d.missing && gpu < cluster.node.gpus; ++gpu)
      if (d.gpu < 0 || d.gpu == gpu) node.missing.insert(gpu);
  }
  return harm;
}

bool by_node(const ClusterSpec& cluster) {
  return std::ranges::all_of(cluster.defects, [](const Defect& d) { return d.leaf < 0; });
}

// From the worst node on, every one that the rest can do without; of equal ones the last.
std::vector<bool> without_worst(const ClusterSpec& cluster, int gpus) {
  const std::vector<Harm> harm = harm_of_nodes(cluster);
  std::vector<int> worst_first(harm.size());
  std::iota(worst_first.rbegin(), worst_first.rend(), 0);
  std::ranges::stable_sort(worst_first, std::ranges::greater{},
                           [&](int node) { return harm[static_cast<std::size_t>(node)].order(); });
  std::vector<bool> out(harm.size(), false);
  int left = cluster.gpus();
  for (const int node : worst_first) {
    const auto i = static_cast<std::size_t>(node);
    const int own = harm[i].gpus(cluster);
    if (left - own >= gpus) {
      out[i] = true;
      left -= own;
    }
  }
  return out;
}

ClusterSpec without(const ClusterSpec& cluster, const std::vector<bool>& left_out) {
  ClusterSpec out = cluster;
  out.nodes = 0;
  std::vector<int> place(left_out.size(), -1);  // of a node among those that stay
  for (std::size_t i = 0; i < place.size(); ++i)
    if (!left_out[i]) place[i] = out.nodes++;
  const auto place_of = [&](const Defect& d) { return place[static_cast<std::size_t>(d.node)]; };
  std::erase_if(out.defects, [&](const Defect& d) { return place_of(d) < 0; });
  for (Defect& d : out.defects) d.node = place_of(d);
  return out;
}

}  // namespace

ClusterSpec sub_cluster(const ClusterSpec& cluster, int gpus) {
  const bool all_by_node = by_node(cluster);
  if (all_by_node && gpus < cluster.gpus())
    return without(cluster, without_worst(cluster, std::max(1, gpus)));
  ClusterSpec out = cluster;
  const int per_node = std::max(1, cluster.node.gpus);
  out.nodes = std::max(all_by_node ? cluster.nodes : 1, (gpus + per_node - 1) / per_node);
  const int per_leaf = out.fabric.leaf_nodes;
  std::erase_if(out.defects, [&](const Defect& d) {
    if (d.leaf < 0) return d.node >= out.nodes;
    return per_leaf >= out.nodes || d.leaf * per_leaf >= out.nodes;
  });
  while (out.gpus() < gpus) ++out.nodes;  // missing GPUs are made up for
  return out;
}

std::vector<int> left_out_nodes(const ClusterSpec& cluster, int gpus) {
  std::vector<int> nodes;
  if (by_node(cluster) && gpus < cluster.gpus()) {
    const std::vector<bool> out = without_worst(cluster, std::max(1, gpus));
    for (std::size_t i = 0; i < out.size(); ++i)
      if (out[i]) nodes.push_back(static_cast<int>(i));
  } else {
    for (int node = sub_cluster(cluster, gpus).nodes; node < cluster.nodes; ++node) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int> gpus_without_slow_nodes(const ClusterSpec& cluster) {
  if (!by_node(cluster)) return {};
  std::map<double, int, std::greater<>> gpus_by_harm;
  for (const Harm& node : harm_of_nodes(cluster))
    if (node.slows > 0) gpus_by_harm[node.slows] += node.gpus(cluster);
  std::vector<int> sizes;
  int left = cluster.gpus();
  for (const auto& [slows, gpus] : gpus_by_harm)
    if (gpus > 0 && left > gpus) sizes.push_back(left -= gpus);
  // All together run at the speed of the slowest part at least.
  double slowest = 1;
  for (const Defect& d : cluster.defects)
    slowest = std::min({slowest, d.compute_factor, d.node_link_factor, d.network_factor});
  std::erase_if(sizes, [&](int n) { return n <= slowest * cluster.gpus(); });
  if (sizes.size() <= kMostSizes) return sizes;
  std::vector<int> some;  // evenly among them, first and last included
  for (std::size_t i = 0; i < kMostSizes; ++i)
    some.push_back(sizes[i * (sizes.size() - 1) / (kMostSizes - 1)]);
  return some;
}

std::string nodes_text(const std::vector<int>& nodes) {
  constexpr std::size_t kShown = 8;
  if (nodes.size() > kShown) return fmt::format("{} nodes", nodes.size());
  if (nodes.size() == 1) return fmt::format("node {}", nodes.front());
  return fmt::format("nodes {} and {}", fmt::join(nodes.begin(), nodes.end() - 1, ", "), nodes.back());
}

}  // namespace sextant
