// A small cluster of round figures: 8 GPUs a node, NVSwitch 300 GB/s, 8 NICs of 31.25 GB/s at efficiency 0.8; and plans by
// their degrees.
#pragma once

#include "core/cluster/cluster_spec.hpp"
#include "core/plan/parallel_plan.hpp"

namespace sextant::test {

inline ClusterSpec small_cluster(int nodes) {
  ClusterSpec c;
  c.name = "test";
  c.nodes = nodes;
  c.device.name = "A100-SXM4-80GB";
  c.device.generation = "ampere";
  c.device.memory = from_gib(79.15);
  c.device.memory_bandwidth = BytesPerSecond(2039e9);
  c.device.peak = {{Dtype::bf16, FlopsPerSecond(312e12)}};
  c.device.multiprocessors = 108;
  c.device.launch_overhead = Seconds(8e-6);
  c.device.host_link = BytesPerSecond(32e9);
  c.node.gpus = 8;
  c.node.link = NodeLinkKind::nvswitch;
  c.node.link_bandwidth = BytesPerSecond(300e9);
  c.node.link_latency = Seconds(2e-6);
  c.node.nics = 8;
  c.node.nic_bandwidth = BytesPerSecond(31.25e9);
  c.node.host_memory = from_gib(1024);
  c.node.host_memory_bandwidth = BytesPerSecond(200e9);
  c.fabric.name = "test";
  c.fabric.kind = "infiniband";
  c.fabric.bandwidth = BytesPerSecond(250e9);
  c.fabric.efficiency = 0.8;
  c.fabric.latency = Seconds(13e-6);
  return c;
}

inline ParallelPlan plan(int tp, int cp, int pp, int dp) {
  ParallelPlan p;
  p.tp = tp;
  p.cp = cp;
  p.pp = pp;
  p.dp = dp;
  return p;
}

}  // namespace sextant::test
