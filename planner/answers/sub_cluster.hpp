// The same cluster with another number of GPUs: which of its nodes stay. One rule for every verb: the best nodes first.
#pragma once

#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"

namespace sextant {

// The cluster with whole nodes added or left out until it has that many GPUs: from the worst on, those that the others can
// do without. With defects of leaves, whose nodes cannot be told apart from their places, the last nodes are.
ClusterSpec sub_cluster(const ClusterSpec&, int gpus);

// The nodes that `sub_cluster` leaves out, ascending, by their numbers in the whole cluster.
std::vector<int> left_out_nodes(const ClusterSpec&, int gpus);

// The GPUs that are left without the slowest nodes, without the next slowest as well, ..., without every slow one:
// descending, at most six numbers, of which so many might be faster: all GPUs run at the speed of the slowest part at least.
// Empty where no node is slow, or no other would be left.
std::vector<int> gpus_without_slow_nodes(const ClusterSpec&);

// "node 3", "nodes 1, 4 and 7", or of more than eight how many they are.
std::string nodes_text(const std::vector<int>&);

}  // namespace sextant
