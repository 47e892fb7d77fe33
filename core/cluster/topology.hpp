// The cluster as a graph (GPUs, NVSwitch or NVLink mesh, PCIe, NICs, rails, leaf and spine) and what it says
// about a group of ranks: widest paths, NIC sharing between concurrent groups, bisection. Rank i sits on the
// i-th usable GPU, node by node. Ignores routing inside a leaf and congestion from other jobs.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/group_shape.hpp"
#include "core/cluster/rank_grid.hpp"

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

  // The replicas of a stage are its ranks along cp (fastest) and dp. `shards` consecutive ones share a state: their
  // group, and that of the ranks which hold the same slice.
  // Their collectives stand in a queue (gradient reductions, parameter gathers): see FabricSpec::congestion.
  struct ShardGroups {
    GroupShape shard, replica;
  };
  GroupShape replica_group(const RankGrid&, int stage) const;  // all replicas
  ShardGroups shard_groups(const RankGrid&, int stage, int shards) const;

  // Stages after which groups repeat, shifted by whole repetitions of the cluster: stage s has those of stage
  // s % stage_period(). So do links to the next stage, but for the last stage's to the first.
  int stage_period(const RankGrid&) const;

  // One order of axes for all that give the plan's communicators equal links, but for shards and replicas: on clusters that
  // repeat themselves it does not matter which of the axes comes first beyond what repeats. Its own order elsewhere.
  AxisOrder plain_order(const RankDegrees&) const;

  // The group of exactly these ranks, with `concurrent_per_node` groups of its kind sharing each node's NICs.
  GroupShape group_of(std::span<const int> ranks, int concurrent_per_node = 1) const;

  BytesPerSecond bisection() const;
  std::string dot() const;  // Graphviz, for pictures

 private:
  // Asked of the graph, not of what is remembered.
  GroupShape slowest_group(const RankGrid&, std::initializer_list<Axis> axes, int stage) const;
  GroupShape slowest_stage_link(const RankGrid&, int stage) const;
  GroupShape repeated_group(std::span<const int> ascending, int concurrent_per_node, int repeats) const;
  GroupShape beside_others(std::vector<int>& members, int repeats) const;
  ShardGroups groups_of_shards(const RankGrid&, int stage, int shards) const;
  GroupShape queued(GroupShape) const;  // as a queue of collectives finds it

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sextant
