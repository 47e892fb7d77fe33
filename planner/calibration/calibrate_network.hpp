// What does a table of nccl-tests say about the links? Between nodes: the fabric's reachable share of its nominal rate
// and the time of one hop; inside one node: the reachable share of its links. Least squares on the logarithm of time,
// priors as for step times, from the likeliest of a grid of starts; of what is tried that is kept whose mean error is
// smallest, the presets if nothing betters it or the largest sizes would be further off.
//
// A table shows an idle network, whole runs one that carries many nodes and other traffic. Where published tables of the
// same fabric are known, the constants of steps move by the factor by which this table differs from those.
//
// Ignores what a training step adds to a collective (ranks that wait for each other): nccl-tests do not show it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/cluster/cluster_spec.hpp"
#include "planner/calibration/calibrate.hpp"
#include "planner/calibration/nccl_table.hpp"
#include "planner/validation/nccl_baseline.hpp"

namespace sextant {

struct NetworkFit {
  std::vector<ConstantFit> constants;  // none where the fit is not taken
  int samples = 0;
  // Percent, of the sizes used: of the presets or published tables, of what is kept, and of the best that was tried beside.
  double mape_before = 0, mape_after = 0, mape_fit = 0;
  bool taken = false;          // false: each trial was worse than what it started from, which stays
  bool costs_largest = false;  // some trials bettered the mean, but made the largest sizes worse
  std::string fabric;          // between nodes: whose
  // Of the largest size: its bus bandwidth, and the share of what the cluster's links are stated to carry that it comes to; where the
  // switch reduces (NVLS, in_switch), of what is known to be reached so, which is more than a ring gets out of the links.
  double bus_GBps = 0, share_of_stated = 0;
  bool in_switch = false;
  bool idle_known = false;  // published tables of it are
};

// The table's ranks sit on as many of the cluster's nodes as it names, and must fit there. Throws ConfigError when they do
// not, and on times that no rate of these links comes near. Sizes of at least 16 MiB are used: smaller messages are
// ruled by start-up, which is not fitted.
// `idle`: the cluster's fabric in published tables, or null.
NetworkFit calibrate_network(const NcclTable&, ClusterSpec, const CostConstants&, const CalibrationRules&,
                             const NcclBaseline* idle);

// What to say of a table whose rate is far from what the links are stated to carry (below 30 %, above 110 %): which, and what usually
// makes it so. Nothing of any other.
std::optional<std::string> odd_rate(const NcclTable&, const NetworkFit&, const ClusterSpec&);

// The largest bus rate over link rate of an all-reduce in the switch: each byte crosses a link once in each direction, while
// the bus rate counts 2 (n-1)/n of it.
double most_in_switch(int ranks);

}  // namespace sextant
