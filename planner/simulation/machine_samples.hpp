// A machine's own measurements (core/timeline/machine_facts) in the terms of the analytic model: what is priced in the place of each,
// and how much longer computing and exchanging take beside each other.
//
// Ignores exchanges of ranks that share one device (no links are in them) and what the host takes to enqueue a kernel.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "core/graph/work.hpp"
#include "core/timeline/machine_facts.hpp"
#include "core/timeline/measurement_name.hpp"
#include "cost_models/kernels.hpp"

namespace sextant {

struct MachineSample {
  std::variant<Kernel, CopyWork, MeasuredCollective> what;
  Seconds took;  // median
};

bool is_launch(const Pointwise&);                   // the smallest kernel: all of it is the launch
CollectiveWork work_of(const MeasuredCollective&);  // links are left open
// The first ranks of so many nodes, as many of each; nothing where the cluster has them not.
std::optional<std::vector<int>> first_ranks(int ranks, int nodes, const ClusterSpec&);

// Copies in both directions at once count as copies.
std::vector<MachineSample> machine_samples(const MachineFacts&);

// By a GEMM and a collective or a copy that were measured at the same time: StackKernels of these names, at least 0, the
// mean of both directions; and at most 1: what takes more than twice as long waits for the other's end, which is not a share
// of what both move. Those that were not measured are not there.
std::map<std::string, double> interference_of(const MachineFacts&);

}  // namespace sextant
