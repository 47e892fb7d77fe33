// What a run believes of its machine: the cluster that it was given, and by how much each part has turned out slower, or is
// lost. Becomes a cluster with defects, which everything that plans understands.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/cluster/cluster_events.hpp"
#include "core/cluster/cluster_spec.hpp"
#include "core/plan/parallel_plan.hpp"
#include "planner/adaptation/drift.hpp"

namespace sextant {

class MachineBelief {
 public:
  explicit MachineBelief(ClusterSpec given) : given_(std::move(given)) {}

  // The cluster with what was found, on top of its own defects.
  ClusterSpec cluster() const;

  // `used`: the cluster on whose GPUs the plan's ranks sit, one after the other.
  ExpectedStep expected(const ParallelPlan&, const ClusterSpec& used) const;
  void take(const Drift&, const ClusterSpec& used);
  void lose(const GpuPlace& gpu) { lost_.insert(gpu); }
  void find(const GpuPlace& gpu) { lost_.erase(gpu); }
  const std::set<GpuPlace>& lost() const { return lost_; }

  // "rank 3 (node 0, GPU 3) computes 2.02 times as long", a line for each part of the drift.
  static std::vector<std::string> lines(const Drift&, const ClusterSpec& used);

 private:
  double compute_times(const GpuPlace&) const;
  double network_times(int node) const;

  ClusterSpec given_;
  std::map<GpuPlace, double> compute_;  // times as long as the given cluster says; 1 is left out
  std::map<int, double> network_;
  std::set<GpuPlace> lost_;
};

// The GPUs a cluster of `gpus` of them uses: the others are missing, slow ones first, then the last.
ClusterSpec keep_fastest(const ClusterSpec&, int gpus);

// The cluster with what was missing back again.
ClusterSpec with_none_missing(ClusterSpec);

}  // namespace sextant
