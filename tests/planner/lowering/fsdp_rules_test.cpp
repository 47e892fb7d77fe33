// System: what FSDP2 does by rules of its own. With parameters and optimizer on the host, every micro-batch copies its
// gradients there, all but the first wait for the sum, nothing stays on the device, and fp32 parameters are fetched; ZeRO 2
// reduces unit by unit and gathers again for each micro-batch. Controls: the rules off, one micro-batch, a part of the
// optimizer state, pipeline stages, fp32 parameters.
#include <algorithm>

#include <gtest/gtest.h>

#include "core/graph/graph_memory.hpp"
#include "core/graph/parameter_layout.hpp"
#include "planner/simulation/stage_memory.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

constexpr int kReplicas = 4;

class Fsdp : public ::testing::Test {
 protected:
  void SetUp() override {
    job_ = testing::small_job(1, kReplicas, 4);
    job_.stack.rules.host_sums_gradients = job_.stack.rules.host_parameters_are_master = true;
    job_.stack.rules.zero2_by_units = job_.stack.rules.reduce_every_microbatch = true;
    job_.stack.rules.reduce_every_microbatch_with_pp = false;
    batches(3);
  }
  void batches(int microbatches) {
    job_.training.global_batch = kReplicas * microbatches;
    job_.finish();
  }
  ExecutionGraph graph(const std::string& key) const {
    const ParallelPlan plan = parse_plan_key(key);
    return lower(job_.model, job_.training, plan_links(*job_.topology, plan), plan, job_.stack);
  }
  double step(const std::string& key) const {
    SimulateScratch scratch;
    return testing::simulated(job_.job(), parse_plan_key(key), scratch);
  }
  testing::OwnedJob job_;
};

struct Counted {
  int copies = 0, sums = 0, waits = 0;
  std::int64_t device = 0;  // bytes of gradients that stay there
};
Counted counted(const ExecutionGraph& g) {
  Counted n;
  for (const Op& op : g.ops) {
    const bool sum = op.role == OpRole::grad_accumulate && g.lanes[op.lanes[0]].kind == LaneKind::host;
    n.copies += op.role == OpRole::copy_out;
    n.sums += sum;
    for (const OpId dep : g.deps_of(op))
      n.waits += g.ops[dep].role == OpRole::grad_accumulate && g.ops[dep].lanes[0] != op.lanes[0] &&
                 g.lanes[op.lanes[0]].kind == LaneKind::compute;
  }
  for (const Buffer& b : g.buffers) n.device += b.kind == BufferKind::gradient ? b.bytes : 0;
  return n;
}

constexpr const char* kOffloaded = "dp4.z3.mbs1.po.oo100";

TEST_F(Fsdp, EveryMicrobatchIsCopiedAndAllButTheFirstAreWaitedFor) {
  const ExecutionGraph g = graph(kOffloaded);
  const auto buckets =
      static_cast<int>(parameter_layout(g.model, g.plan, job_.stack.rules, 0).buckets.size());
  const Counted n = counted(g);
  EXPECT_EQ(n.copies, 3 * buckets);
  EXPECT_EQ(n.sums, 2 * buckets);
  EXPECT_EQ(n.waits, n.sums - 1);  // the step's end waits for the norms, which are behind the last
  EXPECT_EQ(n.device, 0);

  job_.stack.rules.host_sums_gradients = false;  // on the device, and copied once
  const Counted once = counted(graph(kOffloaded));
  EXPECT_EQ(once.copies, buckets);
  EXPECT_EQ(once.sums, 0);
  EXPECT_GT(once.device, 0);
}

TEST_F(Fsdp, OneMicrobatchOrAPartOfTheStateSumsNothingThere) {
  EXPECT_GT(counted(graph("dp4.z3.mbs1.po.oo50")).device, 0);
  EXPECT_EQ(counted(graph("dp4.z3.mbs1.po.oo50")).sums, 0);
  batches(1);
  EXPECT_EQ(counted(graph(kOffloaded)).sums, 0);
}

// What a micro-batch more costs is at least its copies and sums, which nothing hides.
TEST_F(Fsdp, AMicrobatchMoreTakesItsCopiesAndSums) {
  const auto priced = [&] {
    const ExecutionGraph g = graph(kOffloaded);
    double seconds = 0;
    for (const Op& op : g.ops)
      if (op.microbatch == 2 && (op.role == OpRole::copy_out || op.role == OpRole::grad_accumulate))
        seconds += job_.cost->price(g.works[op.work]).duration.v;
    return seconds;
  };
  const double three = step(kOffloaded), held = priced();
  batches(4);
  const double four = step(kOffloaded);
  EXPECT_GT(held, 0);
  EXPECT_GT(four - three, held);

  job_.stack.rules.host_sums_gradients = false;
  EXPECT_LT(step(kOffloaded), four - 2 * held);
}

// The master copy is what rests on the host and what is fetched: as many bytes there, twice as many on the link.
TEST_F(Fsdp, TheMasterCopyIsFetched) {
  const auto fetched = [&] {
    std::int64_t bytes = 0;
    const ExecutionGraph g = graph(kOffloaded);
    for (const Op& op : g.ops)
      if (op.role == OpRole::copy_in) bytes += std::get<CopyWork>(g.works[op.work]).bytes.v;
    return bytes;
  };
  const auto host = [&] {
    return estimate_memory(job_.model, job_.training, parse_plan_key(kOffloaded), job_.stack).stages[0].host;
  };
  const std::int64_t master = fetched(), resting = host();
  job_.stack.rules.host_parameters_are_master = false;
  EXPECT_EQ(master, 2 * fetched());
  const ParameterLayout layout =
      parameter_layout(job_.model, parse_plan_key(kOffloaded), job_.stack.rules, 0);
  EXPECT_EQ(resting + 2 * layout.owned(), host());

  job_.training.parameter = Dtype::fp32;  // which is the master copy, whatever the rule
  const std::int64_t alone = fetched(), held = host();
  job_.stack.rules.host_parameters_are_master = true;
  EXPECT_EQ(fetched(), alone);
  EXPECT_EQ(host(), held);
}

TEST_F(Fsdp, ZeroTwoGathersUnitsAgainForEachMicrobatch) {
  const auto gathers = [&](const std::string& key) {
    const ExecutionGraph g = graph(key);
    return std::ranges::count(g.ops, OpRole::param_gather, &Op::role);
  };
  const auto buckets = [&](const std::string& key) {
    const ParallelPlan plan = parse_plan_key(key);
    return static_cast<std::ptrdiff_t>(
        parameter_layout(job_.model, plan, job_.stack.rules, 0).buckets.size());
  };
  const std::string key = "dp4.z2.mbs1";
  EXPECT_EQ(buckets(key), buckets("dp4.z3.mbs1"));
  EXPECT_EQ(gathers(key), 3 * buckets(key));
  EXPECT_EQ(gathers("pp2.dp2.z2.mbs1"), 2 * buckets("pp2.dp2.z2.mbs1"));  // stages keep them
  const double apart = step("dp4.z2.mbs1.nopg");

  job_.stack.rules.zero2_by_units = false;
  EXPECT_LT(buckets(key), buckets("dp4.z3.mbs1"));
  EXPECT_EQ(gathers(key), buckets(key));
  EXPECT_LT(step("dp4.z2.mbs1.nopg"), apart);

  job_.stack.rules.zero2_by_units = true;
  batches(1);
  EXPECT_EQ(gathers(key), buckets(key));
}

}  // namespace
}  // namespace sextant
