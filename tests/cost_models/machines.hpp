// Devices and groups for cost-model tests, from data sheets.
#pragma once

#include "core/cluster/cluster_spec.hpp"
#include "core/cluster/group_shape.hpp"
#include "cost_models/analytic.hpp"
#include "tests/support/measured.hpp"

namespace sextant::test {

inline ClusterSpec a100_cluster() {
  using namespace literals;
  ClusterSpec c;
  c.nodes = 8;
  c.device = {"A100-SXM4-80GB",
              "ampere",
              from_gib(79.15),
              2039_GBps,
              {{Dtype::bf16, 312_TFLOPS},
               {Dtype::fp16, 312_TFLOPS},
               {Dtype::tf32, 156_TFLOPS},
               {Dtype::fp32, FlopsPerSecond(19.5e12)}},
              108,
              8_us,
              25_GBps,
              400,
              0};
  c.node.gpus = 8;
  c.node.link_bandwidth = 300_GBps;
  c.node.link_latency = 3_us;
  c.node.host_memory_bandwidth = 300_GBps;
  c.fabric.bandwidth = 200_GBps;
  c.fabric.latency = 51_us;
  return c;
}

inline ClusterSpec h100_cluster() {
  using namespace literals;
  ClusterSpec c = a100_cluster();
  c.device = {"H100-SXM5-80GB",
              "hopper",
              from_gib(79.15),
              3350_GBps,
              {{Dtype::bf16, FlopsPerSecond(989.4e12)},
               {Dtype::fp16, FlopsPerSecond(989.4e12)},
               {Dtype::fp8, 1979_TFLOPS},
               {Dtype::fp32, 67_TFLOPS}},
              132,
              8_us,
              50_GBps,
              700,
              0};
  c.node.link_bandwidth = 450_GBps;
  c.node.nvls = true;
  c.fabric.bandwidth = 400_GBps;
  c.fabric.latency = 13_us;
  return c;
}

// n ranks of one node on switched links.
inline GroupShape inside(const ClusterSpec& c, int n) {
  GroupShape g;
  g.size = n;
  g.nodes = 1;
  g.ranks_per_node = n;
  g.node_bandwidth = c.node.link_bandwidth;
  g.node_latency = c.node.link_latency;
  g.switched = true;
  g.in_switch = c.node.nvls;
  return g;
}

// per_node ranks on each of `nodes` nodes, NICs shared by the groups that fill the node.
inline GroupShape across(const ClusterSpec& c, int nodes, int per_node) {
  GroupShape g = inside(c, per_node);
  g.size = nodes * per_node;
  g.nodes = nodes;
  g.ranks_per_node = per_node;
  g.network_bandwidth = c.fabric.bandwidth * (c.fabric.efficiency * per_node / c.node.gpus);
  g.network_latency = c.fabric.latency;
  g.reduces_inside = c.fabric.reduces_inside;
  return g;
}

// Of LLaMA-3-8B's widths, but the inner one of the MLP.
inline BlockWork block_of_8b(BlockKind kind, int seq) {
  BlockWork w{.kind = kind, .batch = 1, .seq_q = seq, .seq_k = seq, .hidden = 4096};
  w.heads = 32;
  w.kv_heads = 8;
  w.head_dim = 128;
  return w;
}

}  // namespace sextant::test
