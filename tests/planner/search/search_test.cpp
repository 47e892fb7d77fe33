// The search against brute force over whole small spaces: the same best plan, every member counted once.
#include "planner/search/search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/plan/plan_limits.hpp"
#include "planner/search/search_tree.hpp"
#include "planner/search/stage_split.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using testing::keys;
using testing::OwnedJob;

// A space that touches every list, yet can be simulated whole.
SearchSpace small_space(const OwnedJob& owned) {
  SearchSpace s = default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  s.tp = {1, 2, 3};
  s.cp = {1, 2};
  s.pp = {1, 2};
  s.axis_order.resize(2);
  s.micro_batch = {1, 2};
  s.recompute = {{RecomputeKind::none, -1}, {RecomputeKind::full, 1}};
  s.form = {{PipelineSchedule::one_f_one_b, 1},
            {PipelineSchedule::interleaved, 2},
            {PipelineSchedule::zero_bubble, 1}};
  s.overlap_tp = {0};
  s.zero_stage = {0, 1, 3};
  s.overlap_param_gather = {1};
  s.shard_degree = {0, 2};
  s.optimizer_offload = {0};
  s.parameter_offload = {0};
  s.activation_offload = {{0, 1}, {1, 1}, {ActivationOffload::all, 1}};
  s.bucket_elements = {0, 1'000'000};
  s.last_bucket_split = {1};
  return s;
}

struct BruteForce {
  double step = INFINITY;
  std::string key;
  std::uint64_t lawful = 0, fitting = 0;
  struct Member {
    double step;
    std::int64_t peak;
    std::array<int, 14> effort;
  };
  std::vector<Member> members;  // those that fit
  double fastest_within(double peak) const {
    double least = INFINITY;
    for (const Member& m : members)
      if (static_cast<double>(m.peak) <= peak) least = std::min(least, m.step);
    return least;
  }
};

BruteForce brute_force(const Job& job, const SearchSpace& space) {
  BruteForce best;
  const SearchTree tree(job, space, job.cluster.device.memory);
  SearchCache cache(job, space);
  SimulateScratch scratch;
  testing::each_member(space, [&](const Choice& choice) {
    if (space.world % (space.tp[choice.tp] * space.cp[choice.cp] * space.pp[choice.pp]) != 0) return;
    const ParallelPlan plan = tree.plan(choice, cache);
    if (unlawful(job, plan) || space.idle_horizon(plan)) return;
    ++best.lawful;
    const Bytes peak = plan_memory(job, plan).peak;
    if (peak > job.cluster.device.memory) return;
    ++best.fitting;
    const double step = testing::simulated(job, plan, scratch);
    if (step < best.step) {
      best.step = step;
      best.key = plan_key(plan);
    }
    best.members.push_back({step, peak.v, effort_of(plan)});
  });
  return best;
}

TEST(Search, EqualsBruteForce) {
  for (const double memory_GiB : {79.0, 0.75}) {
    OwnedJob owned = testing::small_job(1, 4, 4);
    owned.training.global_batch = 4;
    owned.cluster.device.memory = from_gib(memory_GiB);
    owned.stack.rules.bucket_elements = 10'000'000;
    owned.stack.rules.bucket_elements_per_replica = 0;
    owned.finish();
    const Job job = owned.job();
    const SearchSpace space = small_space(owned);
    const BruteForce expected = brute_force(job, space);
    SearchOptions options;
    options.move_layers = false;
    const SearchReport report = search(job, space, options);
    if (memory_GiB < 79) {
      EXPECT_LT(expected.fitting, expected.lawful);
    }
    ASSERT_FALSE(report.ranked.empty());
    const RankedPlan& first = report.ranked.front();
    EXPECT_GE(first.simulated.v, expected.step * (1 - 1e-12));
    EXPECT_LE(first.simulated.v, expected.step * (1 + 1e-6))
        << plan_key(first.plan) << " against " << expected.key;
    // As fast as the fastest, and nothing simpler is.
    for (const BruteForce::Member& m : expected.members) {
      EXPECT_FALSE(m.step <= first.simulated.v && m.effort < effort_of(first.plan)) << plan_key(first.plan);
    }
    EXPECT_EQ(report.outcomes.total(), space.size());
    EXPECT_EQ(report.space, space.size());
    EXPECT_TRUE(report.exact);
    EXPECT_EQ(report.outcomes[Outcome::unvisited], 0u);
    EXPECT_GT(expected.lawful, 500u);
    EXPECT_LT(report.outcomes[Outcome::simulated], expected.fitting / 10)
        << "the bounds must spare most of the work";
  }
}

// Eight chunks of six layers: where the stack can cut so, embedding and LM head have one each.
TEST(Search, GivesEmbeddingAndHeadAChunkEach) {
  for (const UnevenStages able : {UnevenStages::any, UnevenStages::ends, UnevenStages::none}) {
    OwnedJob owned = testing::small_job(1, 4, 6);
    owned.training.global_batch = 8;
    owned.stack.can.uneven_stages = able;
    owned.finish();
    const Job job = owned.job();
    SearchSpace space = small_space(owned);
    space.tp = {1};
    space.cp = {1};
    space.pp = {2, 4};
    space.form = {{PipelineSchedule::one_f_one_b, 1},
                  {PipelineSchedule::interleaved, 2},
                  {PipelineSchedule::interleaved, 4}};
    SearchOptions options;
    options.move_layers = false;
    const auto equals_brute_force = [&] {
      const BruteForce expected = brute_force(job, space);
      const SearchReport report = search(job, space, options);
      EXPECT_TRUE(report.exact);
      EXPECT_EQ(report.outcomes.total(), space.size());
      EXPECT_EQ(report.ranked.empty(), expected.fitting == 0) << name(able);
      if (!report.ranked.empty()) {
        EXPECT_NEAR(report.ranked.front().simulated.v / expected.step, 1, 1e-6)
            << plan_key(report.ranked.front().plan) << " against " << expected.key;
      }
      return report.ranked;
    };
    equals_brute_force();
    space.pp = {4};
    space.form = {{PipelineSchedule::interleaved, 2}};
    EXPECT_TRUE(equals_brute_force()
                    .empty());  // a question that does not say how many chunks tries them beside its space
    space.limits.limits.push_back({PlanField::vp, Relation::equal, 2});
    const auto ranked = equals_brute_force();
    ASSERT_EQ(ranked.empty(), able == UnevenStages::none);
    if (!ranked.empty()) {
      EXPECT_EQ(layer_counts(ranked.front().plan.chunks), (std::vector<int>{0, 1, 1, 1, 1, 1, 1, 0}));
    }
  }
}

// How much of the optimizer must leave the devices is asked finely where that decides what fits.
TEST(Search, SharesOfTheOptimizerAreFinerWhereStatePressesOnMemory) {
  OwnedJob owned = testing::small_job(2, 4, 8);
  const auto shares = [&](std::int64_t memory) {
    owned.cluster.device.memory = Bytes(memory);
    return default_space(owned.model, owned.training, owned.cluster.device, 8).optimizer_offload;
  };
  // 18 bytes of a parameter over eight ranks.
  const std::int64_t state = 18 * parameter_counts(owned.model).total / 8;
  EXPECT_EQ(shares(5 * state), (std::vector<double>{0, 0.25, 0.5, 0.75, 1}));
  const std::vector<double> fine = shares(3 * state);
  EXPECT_EQ(fine.size(), 21u);
  for (const double share : {0.0, 0.15, 0.85, 1.0})
    EXPECT_EQ(std::count(fine.begin(), fine.end(), share), 1) << share;
}

TEST(Search, FrontEqualsBruteForce) {
  OwnedJob owned = testing::small_job(1, 4, 4);
  owned.training.global_batch = 4;
  owned.stack.rules.bucket_elements = 10'000'000;
  owned.stack.rules.bucket_elements_per_replica = 0;
  owned.stack.kernels.step_overhead =
      Seconds(0.02);  // of every layout: slower by half is more than half of the rest
  owned.finish();
  const Job job = owned.job();
  const SearchSpace space = small_space(owned);
  const BruteForce expected = brute_force(job, space);
  constexpr double kStep = 0.05, kSlowest = 1.5, kSame = 2e-6;
  SearchOptions members;
  members.move_layers = false;
  const ParetoFront front = pareto_front(job, space, members, kStep, kSlowest);
  EXPECT_TRUE(front.exact);
  EXPECT_EQ(front.report.outcomes.total(), space.size());
  EXPECT_EQ(front.report.outcomes[Outcome::unvisited], 0u);
  ASSERT_GT(front.plans.size(), 3u);
  double limit = INFINITY;
  for (const RankedPlan& plan : front.plans) {
    EXPECT_NEAR(plan.simulated.v / expected.fastest_within(limit), 1, kSame) << plan_key(plan.plan);
    const auto peak = static_cast<double>(plan.prediction.memory.peak.v);
    EXPECT_LE(peak, limit);
    limit = std::floor(peak * (1 - kStep));
  }
  for (std::size_t i = 2; i < front.plans.size(); ++i)  // the second may be as fast as the first
    EXPECT_GT(front.plans[i].simulated.v, front.plans[i - 1].simulated.v);
  EXPECT_EQ(static_cast<double>(front.needs_more.v), limit);
  const ParallelPlan& first = front.plans.front().plan;
  EXPECT_GT(measured_step(job, first, Seconds(expected.fastest_within(limit))).v,
            kSlowest * front.plans.front().prediction.step.v);
  EXPECT_LT(measured_step(job, first, kSlowest * front.plans.front().simulated).v,
            kSlowest * front.plans.front().prediction.step.v);  // the overhead is felt
  // Another step is another front.
  EXPECT_LT(pareto_front(job, space, members, 0.3, kSlowest).plans.size(), front.plans.size());
}

// Parameters that rest on the host are fetched ahead as far as memory and time ask for, activations there or not.
TEST(Search, LooksAheadForParametersAlone) {
  OwnedJob owned = testing::slow_network_job();
  owned.cluster.nodes = 1;
  owned.cluster.node.gpus = 2;
  owned.training.global_batch = 8;
  owned.training.seq_len = 2048;
  owned.finish();
  const Job job = owned.job();
  SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus(),
                    parse_plan_limits("po=on,z=3,mbs=1,tp=1,cp=1,pp=1,b=0,lb=1,gr=on", "--fix"));
  EXPECT_EQ(space.activation_offload.front(), (ActivationOffload{0, 1}));
  EXPECT_NE(std::ranges::find(space.activation_offload, ActivationOffload{0, 3}),
            space.activation_offload.end());
  space.axis_order.resize(1);
  space.recompute.resize(1);
  space.optimizer_offload = {0};
  const BruteForce expected = brute_force(job, space);
  SearchOptions still;
  still.move_layers = false;  // which would find it off the search grid
  const SearchReport report = search(job, space, still);
  ASSERT_FALSE(report.ranked.empty());
  EXPECT_LE(report.ranked.front().simulated.v, expected.step * (1 + 1e-6))
      << plan_key(report.ranked.front().plan) << " against " << expected.key;
  EXPECT_GT(report.ranked.front().plan.offload_horizon, 1);
  EXPECT_EQ(report.outcomes.total(), space.size());
  std::erase_if(space.activation_offload,
                [](const ActivationOffload& a) { return a.layers == 0 && a.horizon > 1; });
  EXPECT_GT(search(job, space, still).ranked.front().simulated, report.ranked.front().simulated);
}

// A horizon without anything on the host is no layout of its own, and costs none: what keeps nothing there stays in
// reach of whatever horizon is asked for.
TEST(Search, TakesOneHorizonOfNothing) {
  const OwnedJob owned = testing::small_job(1, 4, 8);
  const Seconds free = search(owned.job(), default_space(owned.model, owned.training, owned.cluster.device,
                                                         owned.cluster.gpus()))
                           .ranked.front()
                           .simulated;
  for (const char* limits : {"hz=2", "hz=2,po=off", "hz>=3", "hz=2,po=off,ao=0", "hz=0"}) {
    const SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device,
                                            owned.cluster.gpus(), parse_plan_limits(limits, "--limit"));
    const SearchReport report = search(owned.job(), space);
    ASSERT_FALSE(report.ranked.empty()) << limits;
    for (const RankedPlan& r : report.ranked) {
      EXPECT_FALSE(space.idle_horizon(r.plan)) << plan_key(r.plan);
      EXPECT_TRUE(space.limits.admits(r.plan)) << plan_key(r.plan);
    }
    EXPECT_DOUBLE_EQ(report.ranked.front().simulated.v, free.v) << limits;
    EXPECT_EQ(report.outcomes.total(), space.size());
  }
}

// Very short sequences: a micro-batch is as large as its replica's share of the batch lets it be.
TEST(Search, TakesMicroBatchesOfAnySize) {
  OwnedJob owned = testing::small_job(1, 2, 4);
  owned.training.seq_len = 32;
  owned.training.global_batch = 256;
  owned.finish();
  SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  EXPECT_EQ(space.micro_batch.back(), 256);
  const SearchReport report = search(owned.job(), space);
  ASSERT_FALSE(report.ranked.empty());
  EXPECT_GT(report.ranked.front().plan.micro_batch, 32);
  std::erase_if(space.micro_batch, [](int mbs) { return mbs > 32; });
  EXPECT_GT(search(owned.job(), space).ranked.front().simulated, report.ranked.front().simulated);
  // As many as an index can tell apart: the smallest.
  owned.training.global_batch = 14'414'400;  // 504 divisors
  const std::vector<int> many =
      default_space(owned.model, owned.training, owned.cluster.device, 1).micro_batch;
  EXPECT_LT(many.size(), 256u);
  EXPECT_TRUE(std::ranges::is_sorted(many));
  EXPECT_GT(many.back(), 256);
}

// A choice has eight bits for each index; some values that are pinned come on top.
TEST(Search, ListsAreShortEnoughForAnyModel) {
  OwnedJob owned = testing::small_job(2, 4, 8);
  for (const int layers : {1, 2, 80, 126, 256, 257, 1000, 20'000}) {
    owned.model.n_layers = layers;
    const SearchSpace s =
        default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
    EXPECT_LE(s.activation_offload.size(), 220u) << layers;
    EXPECT_LE(std::max({s.recompute.size(), s.form.size(), s.micro_batch.size(), s.optimizer_offload.size()}),
              220u);
    EXPECT_EQ(std::ranges::count(s.activation_offload, ActivationOffload{ActivationOffload::all, 1}), 1)
        << layers;
  }
}

TEST(Search, IsTheSameOnAnyNumberOfThreads) {
  const OwnedJob owned = testing::small_job(2, 4, 8);
  const Job job = owned.job();
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  SearchOptions options;
  options.threads = 1;
  const SearchReport one = search(job, space, options);
  options.threads = 3;
  const SearchReport three = search(job, space, options);
  EXPECT_EQ(keys(one), keys(three));
  EXPECT_EQ(one.outcomes.by_outcome, three.outcomes.by_outcome);
  EXPECT_EQ(one.bounds, three.bounds);
  EXPECT_EQ(one.outcomes.total(), space.size());
  // Different questions have different answers, so that equality says something.
  options.top = 8;
  EXPECT_NE(search(job, space, options).outcomes.by_outcome, one.outcomes.by_outcome);
}

TEST(Search, RanksTheBestOfEachFamily) {
  const OwnedJob owned = testing::small_job(2, 4, 8);
  SearchOptions options;
  options.top = 8;
  const SearchReport report =
      search(owned.job(),
             default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus()), options);
  ASSERT_EQ(report.ranked.size(), 8u);
  for (std::size_t i = 0; i < report.ranked.size(); ++i) {
    EXPECT_EQ(report.ranked[i].tie, i > 0 && report.ranked[i].slower < 0.01);
    for (std::size_t j = 0; j < i; ++j) {
      EXPECT_NE(family_of(report.ranked[i].plan), family_of(report.ranked[j].plan));
      EXPECT_LE(report.ranked[j].simulated, report.ranked[i].simulated);
    }
  }
}

TEST(Search, LooksLessForWhatComesBehindTheFirst) {
  const OwnedJob owned = testing::small_job(2, 4, 8);
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  SearchOptions options;
  options.top = 8;
  const SearchReport exact = search(owned.job(), space, options);
  options.others_share = 0.05;
  const SearchReport near = search(owned.job(), space, options);
  ASSERT_EQ(near.ranked.size(), exact.ranked.size());
  EXPECT_EQ(near.ranked.front().plan, exact.ranked.front().plan);
  for (std::size_t i = 0; i < near.ranked.size(); ++i) {
    EXPECT_LE(near.ranked[i].simulated.v, exact.ranked[i].simulated.v / (1 - options.others_share));
    EXPECT_GE(near.ranked[i].simulated.v, exact.ranked[i].simulated.v);
  }
  EXPECT_LT(near.outcomes[Outcome::simulated], exact.outcomes[Outcome::simulated]);
  EXPECT_EQ(near.others_share, options.others_share);
  // Not before it is long: then all are the best of their kind, and fewer are the first of more.
  options.thorough_bounds = std::uint64_t{1} << 40;
  const SearchReport thorough = search(owned.job(), space, options);
  EXPECT_EQ(thorough.others_share, 0);
  ASSERT_EQ(thorough.ranked.size(), exact.ranked.size());
  options.top = 3;
  options.move_layers = false;
  const SearchReport three = search(owned.job(), space, options);
  options.top = 8;
  const SearchReport eight = search(owned.job(), space, options);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(thorough.ranked[i].plan, exact.ranked[i].plan);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(three.ranked[i].plan, eight.ranked[i].plan);
}

TEST(Search, KeepsToWhatTheUserPins) {
  const OwnedJob owned = testing::small_job(2, 4, 8);
  const Job job = owned.job();
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus(),
                    parse_plan_limits("tp=2,dp<=2,mbs=2,oo=30", "--fix"));
  const SearchReport report = search(job, space);
  ASSERT_FALSE(report.ranked.empty());
  for (const RankedPlan& r : report.ranked) {
    EXPECT_EQ(r.plan.tp, 2);
    EXPECT_LE(r.plan.dp, 2);
    EXPECT_EQ(r.plan.micro_batch, 2);
    EXPECT_DOUBLE_EQ(r.plan.optimizer_offload, 0.3);
  }
  EXPECT_GT(report.outcomes[Outcome::outside_limits], 0u);
  EXPECT_EQ(report.outcomes.total(), space.size());
}

}  // namespace
}  // namespace sextant
