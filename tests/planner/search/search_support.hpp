// Jobs for search tests: small clusters and models, fixed or random.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <rapidcheck.h>

#include "core/cluster/topology.hpp"
#include "cost_models/analytic.hpp"
#include "planner/lowering/job.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/search/search.hpp"
#include "planner/search/search_space.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/uncertainty.hpp"
#include "tests/cost_models/machines.hpp"
#include "tests/support/arbitrary.hpp"
#include "tests/support/specs.hpp"

namespace sextant::testing {

// Everything a Job refers to, owned.
struct OwnedJob {
  ModelSpec model;
  TrainingSpec training;
  ClusterSpec cluster;
  StackSpec stack;
  std::unique_ptr<Topology> topology;
  std::unique_ptr<CostModel> cost;
  UncertaintyRules uncertainty = load_uncertainty_rules(test::preset_dir());

  void finish() {
    topology = std::make_unique<Topology>(cluster);
    cost = std::make_unique<AnalyticCostModel>(cluster, stack, test::preset_dir());
  }
  Job job() const { return {model, training, cluster, *topology, stack, *cost, 1.0, &uncertainty}; }
};

// A stack that can do everything.
inline StackSpec able_stack() {
  StackSpec s;
  s.name = "able";
  s.can.zero_stages = {0, 1, 2, 3};
  s.can.max_zero_with_pp = 3;
  s.can.gpipe = s.can.zero_bubble = s.can.shard_degree = true;
  s.can.uneven_stages = UnevenStages::any;
  s.can.optimizer_offload = s.can.parameter_offload = s.can.activation_offload = true;
  s.can.overlap_tp = s.can.last_bucket_split = true;
  s.can.interleaved_microbatches = InterleavedCount::any;
  return s;
}

inline OwnedJob small_job(int nodes = 2, int gpus = 4, int n_layers = 8) {
  OwnedJob o;
  o.model = tiny_model(n_layers);
  o.model.hidden = 1024;
  o.model.ffn_hidden = 2816;
  o.model.head_dim = 128;
  o.model.vocab_size = 8000;
  o.training.seq_len = 1024;
  o.training.global_batch = 16;
  o.cluster = test::a100_cluster();
  o.cluster.name = "small";
  o.cluster.nodes = nodes;
  o.cluster.node.gpus = gpus;
  o.cluster.node.nics = gpus;
  o.cluster.node.nic_bandwidth = BytesPerSecond(25e9);
  o.cluster.node.host_memory = from_gib(512);
  o.cluster.fabric.name = "test";
  o.cluster.fabric.kind = "infiniband";
  o.cluster.fabric.bandwidth = BytesPerSecond(25e9 * gpus);
  o.stack = able_stack();
  o.finish();
  return o;
}

// Llama-3.2-1B in small batches on 4 nodes of 4 GPUs, 25 GB/s between them.
inline OwnedJob slow_network_job() {
  OwnedJob o = small_job(4, 4, 16);
  o.model.hidden = 2048;
  o.model.ffn_hidden = 8192;
  o.model.head_dim = 64;
  o.model.vocab_size = 128256;
  o.model.n_heads = 32;
  o.model.n_kv_heads = 8;
  o.model.tied_embeddings = true;
  o.training.global_batch = 48;
  o.cluster.node.nic_bandwidth = BytesPerSecond(6.25e9);
  o.cluster.fabric.bandwidth = BytesPerSecond(25e9);
  o.finish();
  return o;
}

// Every member of a space.
template <class F>
void each_member(const SearchSpace& s, F visit) {
  const std::array<std::pair<std::uint8_t Choice::*, std::size_t>, 19> fields = {{
      {&Choice::tp, s.tp.size()},
      {&Choice::cp, s.cp.size()},
      {&Choice::pp, s.pp.size()},
      {&Choice::axis_order, s.axis_order.size()},
      {&Choice::micro_batch, s.micro_batch.size()},
      {&Choice::sequence_parallel, s.sequence_parallel.size()},
      {&Choice::overlap_tp, s.overlap_tp.size()},
      {&Choice::recompute, s.recompute.size()},
      {&Choice::form, s.form.size()},
      {&Choice::split, s.split.size()},
      {&Choice::zero_stage, s.zero_stage.size()},
      {&Choice::shard_degree, s.shard_degree.size()},
      {&Choice::optimizer_offload, s.optimizer_offload.size()},
      {&Choice::parameter_offload, s.parameter_offload.size()},
      {&Choice::activation_offload, s.activation_offload.size()},
      {&Choice::bucket_elements, s.bucket_elements.size()},
      {&Choice::last_bucket_split, s.last_bucket_split.size()},
      {&Choice::overlap_grad_reduce, s.overlap_grad_reduce.size()},
      {&Choice::overlap_param_gather, s.overlap_param_gather.size()},
  }};
  Choice c;
  for (std::uint64_t i = 0; i < s.size(); ++i) {
    std::uint64_t rest = i;
    for (const auto& [field, n] : fields) {
      c.*field = static_cast<std::uint8_t>(rest % n);
      rest /= n;
    }
    visit(c);
  }
}

// The simulated step of a plan, seconds.
inline double simulated(const Job& job, const ParallelPlan& plan, SimulateScratch& scratch) {
  const auto graph =
      lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {.operands = false});
  return simulated_step(graph, price(graph, job.cost), simulate_options(job, plan), scratch).v;
}

// Random rules of what goes together: sharding and offload, tensor and sequence parallelism.
inline void some_rules(StackCapabilities& can) {
  using arbitrary::upto;
  const auto coin = [] { return *rc::gen::arbitrary<bool>(); };
  can.shard_degree_from_zero = upto(0, 3);
  can.optimizer_offload_from_zero = upto(0, 3);
  can.partial_offload_from_zero = upto(0, 3);
  can.parameter_offload_from_zero = upto(0, 3);
  can.optimizer_offload_to_zero = upto(1, 3);
  can.overlap_tp_to_zero = upto(1, 3);
  can.parameter_offload_needs_optimizer = coin();
  can.optimizer_offload_needs_parameters = coin();
  can.overlap_tp_needs_sequence_parallel = coin();
  can.interleaved_microbatches = static_cast<InterleavedCount>(upto(0, 2));
  can.offload_with_pp = coin();
  can.offload_of_one_replica = coin();
  can.offload_with_accumulation = coin();
  if (coin()) return;
  AxisOrder order = {Axis::tp, Axis::cp, Axis::dp, Axis::pp};
  for (int left = upto(0, 23); left > 0; --left) std::ranges::next_permutation(order);
  can.axis_orders = {order, {Axis::tp, Axis::cp, Axis::dp, Axis::pp}};
}

// Random shapes, rules and links; lawful ones must be picked by the caller.
class RandomJob {
 public:
  RandomJob() {
    using arbitrary::upto;
    const auto coin = [] { return *rc::gen::arbitrary<bool>(); };
    owned_ = small_job(1 << upto(0, 2), 1 << upto(0, 3), upto(1, 12));
    ModelSpec& m = owned_.model;
    m.tied_embeddings = coin();
    m.gated_mlp = coin();
    m.output_bias = upto(0, 3) == 0;
    m.mlp_bias = upto(0, 3) == 0;
    if (coin()) m.qk_norm = arbitrary::one_of<QkNorm>(3);
    m.normalized_head = coin();
    m.hidden = 256 * upto(1, 16);
    m.ffn_hidden = 64 * upto(1, 128);
    m.vocab_size = upto(100, 100000);
    owned_.training.seq_len = 64 << upto(0, 6);
    owned_.training.global_batch = upto(1, 11) << upto(0, 4);  // also batches that stages do not divide
    StackSpec& s = owned_.stack;
    s.rules.reduce_every_microbatch = coin();
    s.rules.zero3_reduce_every_microbatch = coin();
    s.rules.pipelined_update = coin();
    s.rules.param_gather_overlaps_forward = coin();
    s.rules.p2p_overlaps_compute_1f1b = coin();
    s.rules.p2p_overlaps_compute_interleaved = coin();
    s.rules.zero3_regather_in_backward = coin();
    s.rules.clip_gradients = coin();
    s.rules.scatter_p2p = coin();
    s.rules.cp_ring = coin();
    s.rules.bucket_elements = std::int64_t{1} << upto(16, 26);
    s.rules.bucket_elements_per_replica = 0;
    for (int defects = upto(0, 3) - 1; defects > 0; --defects)
      owned_.cluster.defects.push_back({.node = upto(0, owned_.cluster.nodes - 1),
                                        .gpu = upto(-1, owned_.cluster.node.gpus - 1),
                                        .compute_factor = *rc::gen::element(0.5, 0.8, 1.0),
                                        .network_factor = *rc::gen::element(0.25, 1.0)});
    s.rules.prefetch_blocks = upto(0, 3);
    s.rules.fetch_modules = coin();
    s.rules.selective_by_operation = coin();
    s.can.activation_offload_with_pp = coin();
    s.can.activation_offload_with_recompute = coin();
    s.rules.zero2_by_units = coin();
    s.rules.host_sums_gradients = coin();
    s.rules.host_parameters_are_master = coin();
    s.rules.tied_gradients_apart = coin();
    s.rules.reduce_every_microbatch_with_pp = upto(0, 3) > 0;
    s.rules.grad_reduce_overlaps_to_zero = upto(0, 3);
    s.kernels.comm_slows_compute = coin() ? 0.0 : 0.3;
    s.kernels.compute_slows_comm = coin() ? 0.0 : 0.2;
    s.kernels.tp_hidden_share = arbitrary::share();
    owned_.cluster.fabric.bandwidth = owned_.cluster.fabric.bandwidth * (1.0 / upto(1, 20));
    owned_.cluster.node.nic_bandwidth = owned_.cluster.fabric.bandwidth / owned_.cluster.node.nics;
    owned_.finish();
  }
  Job job() const { return owned_.job(); }
  OwnedJob take() { return std::move(owned_); }

  ParallelPlan plan() const {
    using arbitrary::upto;
    const auto coin = [] { return *rc::gen::arbitrary<bool>(); };
    int left = owned_.cluster.gpus();
    const auto take = [&] {
      int d = 1;
      while (left > 1 && coin()) {
        d *= 2;
        left /= 2;
      }
      return d;
    };
    ParallelPlan p;
    p.tp = take();
    p.cp = take();
    p.pp = take();
    p.dp = left;
    p.sequence_parallel = p.tp > 1 && coin();
    p.overlap_tp = p.tp > 1 && upto(0, 3) == 0;
    if (p.pp > 1) {
      p.schedule = arbitrary::one_of<PipelineSchedule>(4);
      if (p.schedule == PipelineSchedule::interleaved) p.vp = upto(2, 3);
    }
    p.micro_batch = 1 << upto(0, 2);
    p.zero_stage = upto(0, 3);
    if (p.zero_stage > 0 && coin()) p.shard_degree = 1 << upto(0, 3);
    p.recompute.kind = arbitrary::one_of<RecomputeKind>(3);
    if (p.recompute.kind == RecomputeKind::full && coin()) p.recompute.layers = upto(1, 3);
    if (upto(0, 3) == 0) p.optimizer_offload = coin() ? 0.5 : 1.0;
    p.parameter_offload = upto(0, 5) == 0;
    if (p.parameter_offload && coin()) p.offload_horizon = upto(0, 4);
    if (upto(0, 4) == 0) {
      p.activation_offload = 1;
      p.offload_horizon = upto(0, 2);
    }
    if (coin()) p.bucket_elements = std::int64_t{1} << upto(12, 24);
    p.last_bucket_split = upto(1, 3);
    p.overlap_grad_reduce = coin();
    p.overlap_param_gather = coin();
    for (std::size_t i = 3; i > 0; --i)
      std::swap(p.axis_order[i], p.axis_order[static_cast<std::size_t>(upto(0, static_cast<int>(i)))]);
    return p;
  }

 private:
  OwnedJob owned_;
};

inline std::vector<std::string> keys(const SearchReport& report) {
  std::vector<std::string> out;
  for (const RankedPlan& r : report.ranked) out.push_back(plan_key(r.plan));
  return out;
}

}  // namespace sextant::testing
