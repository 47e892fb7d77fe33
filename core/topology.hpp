// The cluster as a graph (GPUs, NVSwitch or NVLink mesh, PCIe, NICs, rails, leaf and spine) and what it says
// about a group of ranks: widest paths, NIC sharing between concurrent groups, bisection. Rank i sits on the
// i-th usable GPU, node by node. Ignores routing inside a leaf and congestion from other jobs.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "core/cluster_spec.hpp"
#include "core/group_shape.hpp"
#include "core/parallel_plan.hpp"

namespace sextant {

class Topology {
 public:
  explicit Topology(const ClusterSpec&);
  ~Topology();
  Topology(Topology&&) noexcept;
  Topology& operator=(Topology&&) noexcept;

  int ranks() const;
  int node_of(int rank) const;
  double compute_factor(int rank) const;  // 1 unless a defect says slower

  // The slowest group that the plan forms along `axes` (one group per choice of the other coordinates), with
  // NICs shared by all groups of these axes that are active at the same time. `stage` restricts it to one
  // pipeline stage; -1 takes the slowest of all.
  GroupShape group(const RankGrid&, std::initializer_list<Axis> axes, int stage = -1) const;

  // The slowest link between stage and its successor (last to first wraps around), NIC shared by all pairs
  // that transfer at once.
  GroupShape stage_link(const RankGrid&, int stage) const;

  // Whether the groups of one stage are those of any other, shifted by whole repetitions of the cluster. The link from
  // the last stage to the first is another.
  bool stages_alike(const RankGrid&) const;

  // The group of exactly these ranks, with `concurrent_per_node` groups of its kind sharing each node's NICs.
  GroupShape group_of(std::span<const int> ranks, int concurrent_per_node = 1) const;

  BytesPerSecond bisection() const;
  std::string dot() const;  // Graphviz, for pictures

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sextant
