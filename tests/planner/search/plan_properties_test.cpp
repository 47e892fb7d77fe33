// What must hold for any model, cluster and layout, over random ones.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/timeline/breakdown.hpp"
#include "planner/lowering/lower.hpp"
#include "planner/simulation/predict.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using testing::OwnedJob;
using testing::RandomJob;

// The same job on another cluster.
OwnedJob with_cluster(const Job& job, ClusterSpec cluster) {
  OwnedJob o;
  o.model = job.model;
  o.training = job.training;
  o.stack = job.stack;
  o.cluster = std::move(cluster);
  o.finish();
  return o;
}

double step(const Job& job, const ParallelPlan& plan) { return predict(job, plan).step.v; }

// A random job under a random plan takes no less on its cluster as worsen(cluster, factor in (0, 1]) leaves it.
template <class Worsen>
void never_faster(Worsen worsen) {
  const RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  ClusterSpec slow = job.cluster;
  worsen(slow, 1.0 / *rc::gen::inRange(1, 9));
  const OwnedJob other = with_cluster(job, slow);
  // A collective that reaches further into a pass may hide another one's start-up: in the millionths.
  RC_ASSERT(step(other.job(), plan) >= step(job, plan) * (1 - 1e-6));
}

RC_GTEST_PROP(PlanProperties, SlowerLinksNeverSpeedAPlanUp, ()) {
  never_faster([](ClusterSpec& slow, double factor) {
    switch (*rc::gen::inRange(0, 4)) {
      case 0:
        slow.node.link_bandwidth = slow.node.link_bandwidth * factor;
        break;
      case 1:
        slow.fabric.bandwidth = slow.fabric.bandwidth * factor;
        slow.node.nic_bandwidth = slow.node.nic_bandwidth * factor;
        break;
      case 2:
        slow.fabric.latency = slow.fabric.latency * (1 / factor);
        break;
      default:
        slow.device.host_link = slow.device.host_link * factor;
    }
  });
}

RC_GTEST_PROP(PlanProperties, SlowerDevicesNeverSpeedAPlanUp, ()) {
  never_faster([](ClusterSpec& slow, double factor) {
    if (*rc::gen::arbitrary<bool>()) {
      for (auto& [dtype, peak] : slow.device.peak) peak = peak * factor;
    } else {
      slow.device.memory_bandwidth = slow.device.memory_bandwidth * factor;
    }
  });
}

RC_GTEST_PROP(PlanProperties, MoreMemoryNeverMakesAPlanInfeasible, ()) {
  const RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  ClusterSpec less = job.cluster;
  // Near what the plan needs, on both sides.
  const double needs = static_cast<double>(plan_memory(job, plan).peak.v);
  less.device.memory = Bytes(std::llround(needs * (0.9 + 0.2 * arbitrary::share())));
  ClusterSpec more = less;
  more.device.memory =
      Bytes(less.device.memory.v + *rc::gen::inRange<std::int64_t>(0, std::int64_t{1} << 34));
  const OwnedJob a = with_cluster(job, less), b = with_cluster(job, more);
  const Prediction small = predict(a.job(), plan), large = predict(b.job(), plan);
  RC_ASSERT(!small.fits || large.fits);
  RC_ASSERT(large.chance_of_overflow <= small.chance_of_overflow);
  RC_ASSERT(large.step == small.step);
}

RC_GTEST_PROP(PlanProperties, NoPlanIsFasterThanItsDevices, ()) {
  const RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const Prediction p = predict(job, plan);
  RC_ASSERT(p.mfu > 0);
  // Attention in full counts work that causal kernels leave out: the honest share is the other one.
  RC_ASSERT(p.mfu_causal < 1);
  RC_ASSERT(p.step_lower <= p.step);
  RC_ASSERT(p.step <= p.step_upper);
}

RC_GTEST_PROP(PlanProperties, ABreakdownSumsToItsStep, ()) {
  const RandomJob random;
  const Job job = random.job();
  const ParallelPlan plan = random.plan();
  RC_PRE(!unlawful(job, plan));
  const auto graph =
      lower(job.model, job.training, plan_links(job.topology, plan), plan, job.stack, {.operands = false});
  const auto parts = breakdown(graph, simulate(graph, price(graph, job.cost), simulate_options(job, plan)));
  for (const TimeSplit& stage : parts.stages) {
    const double sum = std::accumulate(stage.begin(), stage.end(), 0.0);
    RC_ASSERT(std::abs(sum - parts.step.v) <= 1e-9 * parts.step.v);
    for (const double seconds : stage) RC_ASSERT(seconds >= -1e-12);
  }
}

// Ranks on any nodes get what ranks on the first nodes get: nodes without defects are equal.
RC_GTEST_PROP(PlanProperties, PermutingEqualNodesChangesNothing, ()) {
  const RandomJob random;
  const Job job = random.job();
  RC_PRE(job.cluster.defects.empty());
  const int gpus = job.cluster.node.gpus, nodes = job.cluster.nodes;
  std::vector<int> order(static_cast<std::size_t>(nodes));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size() - 1; i > 0; --i)
    std::swap(order[i], order[static_cast<std::size_t>(arbitrary::upto(0, static_cast<int>(i)))]);
  std::vector<int> ranks, moved;
  for (int rank = 0; rank < job.cluster.gpus(); ++rank)
    if (*rc::gen::arbitrary<bool>()) {
      ranks.push_back(rank);
      moved.push_back(order[static_cast<std::size_t>(rank / gpus)] * gpus + rank % gpus);
    }
  if (ranks.empty()) {
    ranks = {0};
    moved = {order[0] * gpus};
  }
  std::sort(moved.begin(), moved.end());
  RC_ASSERT(job.topology.group_of(ranks) == job.topology.group_of(moved));
}

// What a plan holds, communication buffers apart (a ring of whole units may be larger than what it saves).
double held(const Job& job, const ParallelPlan& plan) {
  const MemoryEstimate e = estimate_memory(job.model, job.training, plan, job.stack);
  double most = 0;
  for (const StageMemory& s : e.stages)
    most =
        std::max(most, static_cast<double>(s.allocated().v -
                                           s.at_peak[static_cast<std::size_t>(BufferKind::communication)]));
  return most;
}

RC_GTEST_PROP(PlanProperties, MemoryNeverGrowsWithTheZeroStage, ()) {
  const RandomJob random;
  const Job any = random.job();
  StackSpec stack = any.stack;  // stage 3 shards what stage 2 does
  stack.rules.zero3_reduce_every_microbatch |= stack.rules.reduce_every_microbatch;
  const Job job{any.model, any.training, any.cluster, any.topology, stack, any.cost};
  ParallelPlan plan = random.plan();
  plan.shard_degree = 0;
  plan.parameter_offload = false;
  plan.optimizer_offload = 0;
  double before = std::numeric_limits<double>::infinity();
  int lawful = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    plan.zero_stage = stage;
    if (unlawful(job, plan)) continue;
    const double now = held(job, plan);
    RC_ASSERT(now <= before * 1.001 + 1e6);  // padding of each bucket to its shards
    before = now;
    ++lawful;
  }
  RC_PRE(lawful > 1);
}

RC_GTEST_PROP(PlanProperties, MemoryNeverGrowsWithRecomputation, ()) {
  const RandomJob random;
  const Job job = random.job();
  ParallelPlan plan = random.plan();
  plan.activation_offload = 0;
  plan.recompute = {};
  RC_PRE(!unlawful(job, plan));
  const double none = held(job, plan);
  plan.recompute.kind = RecomputeKind::full;
  RC_PRE(!unlawful(job, plan));
  // One layer's activations are alive at a time while it is recomputed, beside its input: what a chunk of one layer
  // keeps anyway.
  const double full = held(job, plan);
  const auto input = static_cast<double>(job.model.hidden) * 4.0 * plan.micro_batch * job.training.seq_len *
                     std::max(plan.pp, 1) * job.model.n_layers;
  RC_ASSERT(full <= none + input);
}

RC_GTEST_PROP(PlanProperties, MemoryNeverGrowsWithTensorParallelism, ()) {
  const RandomJob random;
  const Job job = random.job();
  ParallelPlan plan = random.plan();
  plan.tp = 1;
  plan.sequence_parallel = false;
  plan.overlap_tp = false;
  RC_PRE(!unlawful(job, plan));
  StackSpec stack = job.stack;  // what tensor parallelism itself keeps is another coefficient
  stack.memory.saved_tp = stack.memory.saved_tp_shard = stack.memory.transient_hidden = 0;
  const auto needs = [&](int tp) {
    plan.tp = tp;
    plan.sequence_parallel = tp > 1;
    const MemoryEstimate e = estimate_memory(job.model, job.training, plan, stack);
    double most = 0;
    for (const StageMemory& s : e.stages)
      most =
          std::max(most, static_cast<double>(s.allocated().v -
                                             s.at_peak[static_cast<std::size_t>(BufferKind::communication)]));
    return most;
  };
  const double one = needs(1);
  for (const int tp : {2, 4}) {
    plan.tp = tp;
    plan.sequence_parallel = true;
    if (!validate(plan, job.model, job.training).empty()) continue;
    RC_ASSERT(needs(tp) <= one * 1.001 + 2e6);
  }
}

}  // namespace
}  // namespace sextant
