#include "cost_models/collective.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace sextant {

namespace {

// What NCCL chooses from for each message. Source: src/graph/tuning.cc of NCCL 2.19, rings over NVLink: base latency (6.6,
// 14 and 8.4 us) and latency of a step (0.6, 1.9 and 3.4 us), here over Simple's; share of the rate that is data.
struct Protocol {
  double base, step, share;
};
constexpr std::array kProtocols = {
    Protocol{6.6 / 8.4, 0.6 / 3.4, 0.5},  // LL: every 4 bytes carry a flag of 4 bytes
    Protocol{14 / 8.4, 1.9 / 3.4, 0.92},  // LL128: 8 of 128 bytes are flags
    Protocol{1, 1, 1},                    // Simple
};

// Steps of a ring over n ranks.
double ring_steps(CollectiveKind kind, int n) {
  return (kind == CollectiveKind::all_reduce ? 2.0 : 1.0) * (n - 1);
}

// What ranks of a node wait for each other in a step. Steps of longer rings than whole runs have shown (eight GPUs) wait for
// nobody more. Seconds.
double waits(CollectiveKind kind, double steps, const CostConstants& c) {
  return 1e-6 * (c.collective_skew_us + c.collective_step_us * std::min(steps, ring_steps(kind, 8)));
}

// Bus rate of a rank inside its node. Bytes/s.
double inside_rate(CollectiveKind kind, const GroupShape& g, const CostConstants& c) {
  if (!g.switched) return g.node_bandwidth.v * c.link_efficiency_mesh;
  const int n = g.nodes > 1 ? g.ranks_per_node : g.size;
  const double ring = c.link_efficiency * n / (n + c.ring_half_ranks);
  const bool in_switch =
      kind == CollectiveKind::all_reduce && g.in_switch && (g.nodes <= 1 || g.reduces_inside);
  return g.node_bandwidth.v * (in_switch ? std::max(ring, c.link_efficiency_in_switch) : ring);
}

// Bus rate of a rank, for large messages. Between nodes that have reduced inside first 2 (N-1)/N of the message goes from
// node to node instead of 2 (n-1)/n. Bytes/s.
double rate(CollectiveKind kind, const GroupShape& g, const CostConstants& c) {
  const double inside = inside_rate(kind, g, c);
  if (g.nodes <= 1) return inside;
  double across = g.network_bandwidth.v;
  if (g.ranks_per_node <= 1) return across;
  if (kind == CollectiveKind::all_reduce && g.reduces_inside)
    across *= bus_factor(kind, g.size) / bus_factor(kind, g.nodes);
  return inside > 0 ? std::min(across, inside) : across;
}

// What hops between nodes cost: a hop waits until its chunk is there, and chunks of a small message are small. In a queue
// the next collective fills that wait; what is left grows with the nodes. Seconds.
double hops_time(const CollectiveWork& w, const CostConstants& c) {
  const GroupShape& g = w.group;
  const double bytes = static_cast<double>(w.bytes.v), latency = g.network_latency.v;
  if (g.queued_bandwidth.v > 0 && g.queued_latency.v > 0) {
    const double passes = w.kind == CollectiveKind::all_reduce ? 2 : 1;
    return passes * g.nodes / (g.queued_bandwidth.v / bytes + 1 / g.queued_latency.v);
  }
  double hops = ring_steps(w.kind, g.size);
  if (w.kind == CollectiveKind::all_reduce)
    hops = std::min(hops, c.network_hops_per_node * (g.in_network ? 2 : g.nodes));
  return hops * latency * bytes / (bytes + 2 * latency * g.network_bandwidth.v);
}

}  // namespace

double bus_factor(CollectiveKind kind, int ranks) { return ring_steps(kind, ranks) / ranks; }

CostConstants alone(CostConstants c) {
  c.collective_skew_us = c.collective_step_us = 0;
  return c;
}

OpCost price_collective(const CollectiveWork& w, const Machine& m, double tp_hidden_share) {
  const GroupShape& g = w.group;
  const int n = g.size;
  if (n <= 1 || w.bytes.v <= 0) return {};
  const CostConstants& c = m.constants;
  const double bandwidth = rate(w.kind, g, c);
  const double large = bus_factor(w.kind, n) * static_cast<double>(w.bytes.v) / bandwidth;
  const double steps = ring_steps(w.kind, g.nodes > 1 ? g.ranks_per_node : n);
  double fixed = 1e-6 * c.collective_start_us;
  // Ranks of several nodes wait for each other no less than those of one; hops fitted to whole runs hold it where they take long.
  const double inside = waits(w.kind, steps, c);
  fixed += g.nodes > 1 ? std::max(inside, g.network_start.v + hops_time(w, c)) : inside;
  OpCost cost;
  cost.duration = Seconds(std::numeric_limits<double>::infinity());
  for (const Protocol& p : kProtocols) {
    const double latency = fixed + 1e-6 * c.protocol_base_us * p.base + steps * g.node_latency.v * p.step;
    if (latency + large / p.share >= cost.duration.v) continue;
    cost.latency = Seconds(latency);
    cost.memory = Seconds(large / p.share);
    cost.duration = cost.latency + cost.memory;
  }
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
  cost.latency = Seconds(1e-6 * c.protocol_base_us) + (across ? g.network_latency : g.node_latency);
  cost.memory = Seconds(static_cast<double>(w.bytes.v) / bandwidth);
  cost.duration = cost.latency + cost.memory;
  return cost;
}

}  // namespace sextant
