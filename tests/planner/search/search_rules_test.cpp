// The search under rules of what goes together, against brute force: what the stack refuses is never returned, and nothing
// that it allows is lost.
#include <map>
#include <ranges>
#include <set>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "planner/answers/lowest_memory.hpp"
#include "planner/search/search.hpp"
#include "planner/search/search_tree.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

// Every choice of what the rules are about.
SearchSpace space_of_rules(const Job& job) {
  SearchSpace s = default_space(job.model, job.training, job.cluster.device, job.cluster.gpus());
  s.tp = {1, 2};
  s.cp = {1};
  s.pp = {1, 2};
  s.axis_order.resize(job.stack.can.axis_orders.empty() ? 1 : s.axis_order.size());
  s.micro_batch = {1};
  s.zero_stage = {0, 1, 2, 3};
  s.shard_degree = {0, 2};
  s.sequence_parallel = {0, 1};
  s.overlap_tp = {0, 1};
  s.recompute = {{RecomputeKind::none, -1}};
  s.form = {{PipelineSchedule::one_f_one_b, 1}, {PipelineSchedule::gpipe, 1}};
  s.optimizer_offload = {0, 0.5, 1};
  s.parameter_offload = {0, 1};
  s.activation_offload = {{0, 1}, {1, 1}};
  s.bucket_elements = {0};
  s.last_bucket_split = {1};
  s.overlap_grad_reduce = s.overlap_param_gather = {1};
  return s;
}

struct OfRules {
  double step = INFINITY;
  int refused = 0;  // by the stack alone
};

OfRules brute_force_of_rules(const Job& job, const SearchSpace& space) {
  OfRules best;
  const SearchTree tree(job, space, job.cluster.device.memory);
  SearchCache cache(job, space);
  SimulateScratch scratch;
  testing::each_member(space, [&](const Choice& choice) {
    const ParallelPlan plan = tree.plan(choice, cache);
    if (plan.world() != job.cluster.gpus()) return;
    if (const auto reason = unlawful_reason(job, plan)) {
      best.refused += *reason == RejectReason::unsupported_by_stack;
      return;
    }
    if (space.idle_horizon(plan)) return;
    if (too_large(job, plan_memory(job, plan))) return;
    best.step = std::min(best.step, testing::simulated(job, plan, scratch));
  });
  return best;
}

struct Stack {
  const char* name;
  void (*rules)(StackCapabilities&, StackRules&);
};

class SearchRules : public ::testing::TestWithParam<Stack> {};

TEST_P(SearchRules, EqualsBruteForce) {
  int refused = 0;
  for (const double memory_GiB : {79.0, 1.5, 0.6}) {
    testing::OwnedJob owned = testing::small_job(1, 4, 4);
    owned.training.global_batch = 8;
    owned.cluster.device.memory = from_gib(memory_GiB);
    owned.stack.rules.bucket_elements = 10'000'000;
    owned.stack.rules.bucket_elements_per_replica = 0;
    owned.stack.rules.reduce_every_microbatch = true;
    GetParam().rules(owned.stack.can, owned.stack.rules);
    owned.finish();
    const Job job = owned.job();
    const SearchSpace space = space_of_rules(job);
    const OfRules expected = brute_force_of_rules(job, space);
    refused += expected.refused;
    SearchOptions options;
    options.move_layers = false;
    const SearchReport report = search(job, space, options);
    EXPECT_TRUE(report.exact);
    EXPECT_EQ(report.outcomes.total(), space.size());
    ASSERT_EQ(report.ranked.empty(), std::isinf(expected.step)) << memory_GiB;
    if (report.ranked.empty()) continue;
    EXPECT_NEAR(report.ranked.front().simulated.v / expected.step, 1, 1e-6)
        << memory_GiB << " GiB: " << plan_key(report.ranked.front().plan);
    for (const RankedPlan& r : report.ranked) EXPECT_FALSE(unlawful(job, r.plan)) << plan_key(r.plan);
  }
  EXPECT_EQ(refused > 0, std::string(GetParam().name) != "able");
}

INSTANTIATE_TEST_SUITE_P(
    Of, SearchRules,
    ::testing::Values(Stack{"able", [](StackCapabilities&,
                                       StackRules&) {}},  // the negative control: nothing is refused
                      Stack{"deepspeed",
                            [](StackCapabilities& can, StackRules&) {
                              can.shard_degree_from_zero = can.parameter_offload_from_zero =
                                  can.partial_offload_from_zero = 3;
                              can.optimizer_offload_from_zero = 1;
                            }},
                      Stack{"fsdp2",
                            [](StackCapabilities& can, StackRules& rules) {
                              can.zero_stages = {0, 2, 3};
                              can.parameter_offload_needs_optimizer = can.optimizer_offload_needs_parameters =
                                  true;
                              can.overlap_tp_needs_sequence_parallel = true;
                              can.offload_with_pp = can.offload_of_one_replica = false;
                              rules.host_sums_gradients = rules.host_parameters_are_master = true;
                              rules.zero2_by_units = true;
                            }},
                      Stack{"fsdp1",
                            [](StackCapabilities& can, StackRules& rules) {
                              can.offload_with_accumulation = false;
                              rules.host_parameters_are_master = true;
                            }},
                      Stack{"gemini",
                            [](StackCapabilities& can, StackRules&) {
                              can.zero_stages = {3};
                              can.parameter_offload_needs_optimizer = true;
                            }},
                      Stack{"two_orders",  // of which the usual one is not ours
                            [](StackCapabilities& can, StackRules&) {
                              can.axis_orders = {{Axis::tp, Axis::cp, Axis::pp, Axis::dp},
                                                 {Axis::pp, Axis::cp, Axis::tp, Axis::dp}};
                              can.zero_stages = {1};
                              can.parameter_offload = can.optimizer_offload = false;
                            }},
                      Stack{"megatron",
                            [](StackCapabilities& can, StackRules&) {
                              can.overlap_tp_needs_sequence_parallel = true;
                              can.parameter_offload = false;
                              can.optimizer_offload_from_zero = can.optimizer_offload_to_zero = 1;
                              can.overlap_tp_to_zero = 1;
                            }}),
    [](const auto& stack) { return stack.param.name; });

// Memory that frameworks take only while the optimizer updates, with a reserve that it does not add to: layouts are found as long
// as they fit, to the byte. Of one replica as well, where ZeRO 0 and 1 shard alike but copy unlike.
TEST(SearchRules, WhatTheUpdateTakesLeavesOutNoLayoutThatFits) {
  for (const UpdateCopies copies : {UpdateCopies::none, UpdateCopies::flattened}) {
    testing::OwnedJob owned = testing::small_job(1, 4, 4);
    owned.training.global_batch = 4;
    owned.training.seq_len = 64;
    owned.training.gradient = Dtype::bf16;
    owned.stack.memory.update_copies = copies;
    owned.stack.memory.fragmentation = 1.3;
    owned.stack.memory.reserve_needed = 0.7;
    owned.finish();
    const Job unlimited = owned.job();
    SearchSpace space = space_of_rules(unlimited);
    space.sequence_parallel = {1};
    space.overlap_tp = {0};
    space.activation_offload = {{0, 1}};
    space.zero_stage = {0, 1};
    space.optimizer_offload = {0, 0.5};
    space.parameter_offload = {0};
    space.micro_batch = {1, 2, 4};
    space.recompute = {{RecomputeKind::none, -1}, {RecomputeKind::full, 1}};
    struct Member {
      std::int64_t peak;
      double step;
      std::string key;
    };
    std::vector<Member> members;
    const SearchTree tree(unlimited, space, owned.cluster.device.memory);
    SearchCache cache(unlimited, space);
    SimulateScratch scratch;
    testing::each_member(space, [&](const Choice& choice) {
      const ParallelPlan plan = tree.plan(choice, cache);
      if (plan.world() != 4 || unlawful_reason(unlimited, plan) || space.idle_horizon(plan)) return;
      members.push_back({plan_memory(unlimited, plan).peak.v, testing::simulated(unlimited, plan, scratch),
                         plan_key(plan)});
    });
    std::set<std::int64_t> peaks;  // at each of which another layout fits
    for (const Member& m : members) peaks.insert(m.peak);
    ASSERT_GT(peaks.size(), 20u);
    for (const std::int64_t limit : peaks) {
      const auto fits = [&](const Member& m) { return m.peak <= limit; };
      const auto expected =
          std::ranges::min(members | std::views::filter(fits) | std::views::transform(&Member::step));
      owned.cluster.device.memory = Bytes(limit);
      owned.finish();
      SearchOptions options;
      options.move_layers = false;
      options.top = 1;
      const SearchReport report = search(owned.job(), space, options);
      ASSERT_FALSE(report.ranked.empty()) << limit;
      EXPECT_NEAR(report.ranked.front().simulated.v / expected, 1, 1e-9)
          << limit << " bytes: " << plan_key(report.ranked.front().plan);
      EXPECT_LE(plan_memory(unlimited, report.ranked.front().plan).peak.v, limit);
    }
  }
}

// The fields that are decided at a level.
std::vector<std::uint8_t> decided(const Choice& c, Level level) {
  std::vector<std::uint8_t> out = {c.tp, c.cp, c.pp};
  const auto add = [&](Level from, std::initializer_list<std::uint8_t> fields) {
    if (level >= from) out.insert(out.end(), fields);
  };
  add(Level::placement, {c.micro_batch});
  add(Level::sharding, {c.zero_stage, c.shard_degree, c.axis_order});
  add(Level::kernels, {c.sequence_parallel, c.overlap_tp, c.recompute});
  add(Level::pipeline, {c.form, c.split});
  add(Level::offload, {c.activation_offload, c.optimizer_offload, c.parameter_offload});
  add(Level::full, {c.bucket_elements, c.last_bucket_split, c.overlap_grad_reduce, c.overlap_param_gather});
  return out;
}

// Bounds of all nodes, as tight as they get. With a limit, however high, less is looked at first.
using Bounds = std::map<std::pair<Level, std::vector<std::uint8_t>>, double>;
Bounds bounds_of(const SearchTree& tree, SearchCache& cache, double limit) {
  Bounds bounds;
  std::vector<Node> nodes = {tree.root()};
  while (!nodes.empty()) {
    Expansion out;
    out.limit = limit;
    tree.expand(nodes.back(), cache, out);
    nodes.pop_back();
    for (Node& child : out.children) {
      for (int i = 0; i < SearchTree::passes(child.level); ++i) tree.refine(child, cache, out);
      bounds[{child.level, decided(child.choice, child.level)}] = child.bound;
      if (child.level < Level::full) nodes.push_back(child);
    }
  }
  return bounds;
}

RC_GTEST_PROP(SearchTreeBounds, NoneIsAboveAMember, ()) {
  testing::RandomJob random;
  const ParallelPlan plan = random.plan();
  testing::OwnedJob owned = random.take();
  if (arbitrary::upto(0, 2) > 0) testing::some_rules(owned.stack.can);
  owned.cluster.device.memory = from_gib(*rc::gen::element(1.0, 4.0, 79.0));
  // Of a fast host, what it sums and updates costs less than the same on the device.
  auto& host = owned.cluster.node.host_memory_bandwidth;
  host = host * *rc::gen::element(1.0, 30.0, 1000.0);
  owned.cluster.device.host_link = owned.cluster.device.host_link * *rc::gen::element(1.0, 300.0);
  owned.finish();
  const Job job = owned.job();
  SearchSpace space = default_space(job.model, job.training, job.cluster.device, job.cluster.gpus());
  space.tp = {plan.tp};
  space.cp = {plan.cp};
  space.pp = {plan.pp};
  space.axis_order = {plan.axis_order};
  space.micro_batch = {plan.micro_batch};
  space.shard_degree = {plan.shard_degree};
  space.overlap_tp = {plan.overlap_tp};
  space.recompute = {plan.recompute};
  space.form = {{plan.schedule, plan.vp}};
  space.split = {StageSplit::even};
  if (const int n = job.model.n_layers, vp = (n + 2) / plan.pp; *rc::gen::arbitrary<bool>()) {
    space.split = {StageSplit::balanced};
    if (vp > 1 && (n + 2) % plan.pp == 0) {
      space.form = {{PipelineSchedule::interleaved, vp}};
      space.limits.limits.push_back({PlanField::vp, Relation::equal, static_cast<double>(vp)});
    }
  }
  space.optimizer_offload = {0, 0.5, 1};
  space.activation_offload = {{0, 1}, {0, 2}, {1, 1}};
  if (*rc::gen::arbitrary<bool>()) space.activation_offload = {{0, 3}, {0, 2}, {1, 2}};
  space.bucket_elements = {plan.bucket_elements};
  space.last_bucket_split = {plan.last_bucket_split};
  const SearchTree tree(job, space, job.cluster.device.memory);
  SearchCache cache(job, space);
  const Bounds bounds = bounds_of(tree, cache, *rc::gen::element(1e9, static_cast<double>(INFINITY)));
  SimulateScratch scratch;
  int compared = 0;
  testing::each_member(space, [&](const Choice& choice) {
    const ParallelPlan p = tree.plan(choice, cache);
    if (p.world() != job.cluster.gpus() || unlawful_reason(job, p) || space.idle_horizon(p) ||
        too_large(job, plan_memory(job, p)))
      return;
    const double step = testing::simulated(job, p, scratch);
    for (int level = 1; level <= static_cast<int>(Level::full); ++level) {
      const auto at = static_cast<Level>(level);
      const auto bound = bounds.find({at, decided(choice, at)});
      if (bound == bounds.end()) break;  // repeats another
      ++compared;
      if (bound->second > step * (1 + 1e-9))
        RC_FAIL("bound " + std::to_string(bound->second) + " at level " + std::to_string(level) + ", step " +
                std::to_string(step) + " of " + plan_key(p));
    }
  });
  RC_CLASSIFY(compared > 0);
}

// Bounds ask for shares of the optimizer that may not leave beside parameters: that is no law of the buckets of others.
TEST(SearchTreeBounds, LawsOfBucketsDoNotComeFromOffloadThatTheStackRefuses) {
  testing::OwnedJob owned = testing::small_job(1, 2, 2);
  owned.training.global_batch = 2;
  owned.stack.can.parameter_offload_needs_optimizer = true;
  owned.finish();
  const Job job = owned.job();
  SearchSpace space = default_space(job.model, job.training, job.cluster.device, job.cluster.gpus());
  space.optimizer_offload = {0, 1};
  space.parameter_offload = {1};
  const SearchTree tree(job, space, job.cluster.device.memory);
  for (const double limit : {static_cast<double>(INFINITY), 1e9}) {
    SearchCache cache(job, space);
    const Bounds bounds = bounds_of(tree, cache, limit);
    EXPECT_GT(std::ranges::count_if(bounds, [](const auto& b) { return b.first.first == Level::full; }), 0)
        << limit;
  }
}

// What one rank takes beside its tensors counts the ranks of the layout, not the GPUs of its cluster.
TEST(SearchRules, ALayoutOfOneRankHasNoNcclWhateverTheCluster) {
  testing::OwnedJob owned = testing::small_job(1, 8, 2);
  owned.training.global_batch = 1;
  owned.stack.memory.outside = from_gib(10);
  owned.stack.memory.outside_alone = from_gib(1);
  owned.cluster.device.memory = from_gib(9);
  owned.finish();
  const SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device, 1);
  const SearchReport found = search(owned.job(), space);
  ASSERT_FALSE(found.ranked.empty());
  EXPECT_LT(found.ranked.front().prediction.memory.peak, owned.cluster.device.memory);
  EXPECT_TRUE(lowest_memory_layout(owned.job(), space).plan);
  owned.stack.memory.outside_alone.reset();  // negative control
  EXPECT_TRUE(search(owned.job(), space).ranked.empty());
}

}  // namespace
}  // namespace sextant
