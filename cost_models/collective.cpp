#include "cost_models/collective.hpp"

#include <algorithm>
#include <cmath>

namespace sextant {

namespace {

// One rank's rate inside the node. Source: nccl-tests tables; small groups use fewer channels. Bytes/s.
double node_rate(CollectiveKind kind, const GroupShape& g, const CostConstants& c) {
  double share = g.switched ? c.link_efficiency : c.link_efficiency_mesh;
  if (kind == CollectiveKind::all_reduce && g.in_network && g.switched && g.nodes == 1)
    share = std::max(share, c.link_efficiency_in_switch);
  const int n = g.nodes > 1 ? g.ranks_per_node : g.size;
  if (n <= 2)
    share *= c.link_pair;
  else if (n <= 4)
    share *= c.link_quad;
  return g.node_bandwidth.v * share;
}

double rate(CollectiveKind kind, const GroupShape& g, const Machine& m) {
  const double inside = node_rate(kind, g, m.constants);
  if (g.nodes <= 1) return inside;
  const double across = g.network_bandwidth.v;
  return inside > 0 && g.ranks_per_node > 1 ? std::min(across, inside) : across;
}

}  // namespace

BytesPerSecond bus_bandwidth(CollectiveKind kind, const GroupShape& g, const Machine& m) {
  return BytesPerSecond(rate(kind, g, m));
}

// Source: ring all-gather and reduce-scatter move (n-1)/n of the vector in n-1 hops, a ring all-reduce twice
// that; a tree takes hops by the logarithm of the nodes (NCCL). Skew, and what a step of a ring adds, are fitted on whole
// runs: they hold launch and the wait for ranks, which nccl-tests do not show. Units: bytes, seconds.
OpCost price_collective(const CollectiveWork& w, const Machine& m, double tp_hidden_share) {
  const GroupShape& g = w.group;
  const int n = g.size;
  if (n <= 1 || w.bytes.v <= 0) return {};
  const CostConstants& c = m.constants;
  const bool reduce = w.kind == CollectiveKind::all_reduce;
  const double moved = (reduce ? 2.0 : 1.0) * (n - 1) / n * static_cast<double>(w.bytes.v);
  double latency = 0;
  if (g.nodes <= 1) {
    const double steps = (reduce ? 2.0 : 1.0) * (n - 1);
    latency = 1e-6 * (c.collective_skew_us + c.collective_step_us * steps) + (n - 1) * g.node_latency.v;
  } else {
    double hops = n - 1;
    if (reduce) hops = std::min(2.0 * hops, c.network_tree_hops * std::log2(static_cast<double>(g.nodes)));
    latency = 1e-6 * c.network_start_us + hops * g.network_latency.v;
  }
  const double bandwidth = rate(w.kind, g, m);
  OpCost cost;
  cost.latency = Seconds(latency);
  cost.memory = Seconds(moved / bandwidth);
  cost.duration = cost.latency + cost.memory;
  if (w.tp_overlapped) {
    const double exposed = 1.0 - tp_hidden_share;
    cost.duration = cost.duration * exposed;
    cost.latency = cost.latency * exposed;
    cost.memory = cost.memory * exposed;
  }
  return cost;
}

// A message at the link's rate. Units: bytes, seconds.
OpCost price_transfer(const TransferWork& w, const Machine& m) {
  if (w.bytes.v <= 0) return {};
  const GroupShape& g = w.link;
  const CostConstants& c = m.constants;
  const bool across = g.nodes > 1;
  const double bandwidth =
      across ? g.network_bandwidth.v
             : g.node_bandwidth.v * (g.switched ? c.link_efficiency : c.link_efficiency_mesh);
  OpCost cost;
  cost.latency = Seconds(1e-6 * c.network_start_us) + (across ? g.network_latency : g.node_latency);
  cost.memory = Seconds(static_cast<double>(w.bytes.v) / bandwidth);
  cost.duration = cost.latency + cost.memory;
  return cost;
}

}  // namespace sextant
