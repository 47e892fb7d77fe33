// Layouts off the search grid of the space.
#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/cluster/cluster_files.hpp"
#include "core/model/model_files.hpp"
#include "core/plan/plan_key.hpp"
#include "core/plan/plan_limits.hpp"
#include "planner/search/search.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

struct SearchGrid {
  testing::OwnedJob owned;
  SearchGrid(const char* model, const char* cluster, const char* stack, int global_batch, int seq_len) {
    owned.model = load_model(model, test::preset_dir());
    owned.cluster = load_cluster(cluster, test::preset_dir());
    owned.stack = load_stack(stack, test::preset_dir());
    // The layouts below were found before Megatron-Core's rules for its FSDP and all that its layers keep were known; off the grid is
    // off the grid.
    owned.stack.memory.saved_hidden = owned.stack.memory.saved_ffn = 2;
    owned.stack.memory.wgrad_placeholder_bytes = 0;
    owned.stack.can.optimizer_offload_to_zero = owned.stack.can.overlap_tp_to_zero = 3;
    owned.stack.memory.offload_from_whole = false;  // so that small parts on the host make room
    owned.training.seq_len = seq_len;
    owned.training.global_batch = global_batch;
    owned.finish();
  }
  SearchSpace space(const std::string& fixed = "") const {
    return default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus(),
                         fixed.empty() ? PlanLimits{} : parse_plan_limits(fixed, "--fix"));
  }
};

struct Known {
  const char *model, *cluster, *stack, *fixed;
  int global_batch, seq_len;
};

// Hand-made layouts that beat the best of the space.
TEST(OffGrid, LeavesTheGridWhereThatHelps) {
  for (const Known& k : {Known{"llama-33b", "3x8xa800", "megatron-core", "", 48, 4096},
                         Known{"llama-2-70b", "8x8xa100-40gb", "megatron-core", "", 64, 4096}}) {
    const SearchGrid grid(k.model, k.cluster, k.stack, k.global_batch, k.seq_len);
    const Job job = grid.owned.job();
    SearchOptions options;
    options.move_layers = false;
    const SearchReport still = search(job, grid.space(k.fixed), options);
    options.move_layers = true;
    const SearchReport moved = search(job, grid.space(k.fixed), options);
    ASSERT_FALSE(moved.ranked.empty());
    const RankedPlan &first = moved.ranked.front(), &member = still.ranked.front();
    EXPECT_FALSE(member.off_grid());
    EXPECT_EQ(still.refined, 0u);
    ASSERT_TRUE(first.before_refinement) << plan_key(first.plan);
    EXPECT_LT(first.simulated.v, member.simulated.v) << plan_key(first.plan);
    EXPECT_EQ(first.prediction.step, predict(job, first.plan).step);
    EXPECT_TRUE(first.prediction.fits);
    EXPECT_FALSE(unlawful(job, first.plan));
    // What is proved is said of the space alone.
    EXPECT_TRUE(moved.exact);
    EXPECT_DOUBLE_EQ(moved.best_bound.v, member.prediction.step.v);
    EXPECT_EQ(moved.outcomes.by_outcome, still.outcomes.by_outcome);
    EXPECT_GT(moved.refined, 0u);
    // The same with any number of threads.
    options.threads = 1;
    const SearchReport one = search(job, grid.space(k.fixed), options);
    EXPECT_EQ(one.ranked.front().plan, first.plan);
    EXPECT_EQ(one.refined, moved.refined);
  }
}

// The space fetches activations back at most four layers ahead; farther takes room, which one more layer on the host makes.
TEST(OffGrid, FetchesFartherAhead) {
  const SearchGrid grid("llama-33b", "3x8xa800", "megatron-core", 48, 4096);
  const Job job = grid.owned.job();
  const ParallelPlan known = parse_plan_key("tp1.pp1.vp1.cp1.dp24.z3.mbs2.oo2.ao46.hz20");
  const SearchReport found = search(job, grid.space());
  ASSERT_FALSE(found.ranked.empty());
  EXPECT_LE(found.ranked.front().prediction.step, predict(job, known).step);
  EXPECT_GT(found.ranked.front().plan.offload_horizon, 4);
  const SearchReport pinned = search(job, grid.space("hz=4"));
  ASSERT_FALSE(pinned.ranked.empty());
  EXPECT_EQ(pinned.ranked.front().plan.offload_horizon, 4);
  EXPECT_GT(pinned.ranked.front().simulated, found.ranked.front().simulated);
}

// Of 80 layers the ladder ends at 64, of chunks of 40 at 32: the last grid value is all of them, or what a limit leaves.
TEST(OffGrid, AllLayersOnTheHostAreAGridValue) {
  const SearchGrid grid("llama-65b", "8x8xV100-SXM2-32GB", "megatron-core", 72, 2048);
  const Job job = grid.owned.job();
  const std::string fixed = "oo=0,tp=8,pp=1,mbs=9,z=3,rec=none,cp=1";
  const ParallelPlan known = parse_plan_key("tp8.pp1.vp1.cp1.dp8.z3.mbs9.ao72.tpo");
  const SearchReport found = search(job, grid.space(fixed));
  ASSERT_FALSE(found.ranked.empty());
  EXPECT_LE(found.ranked.front().prediction.step, predict(job, known).step);

  const auto narrowed = [&](const char* limit) {
    PlanLimits limits = parse_plan_limits(fixed, "--fix");
    for (const PlanLimit& more : parse_plan_limits(limit, "--limit").limits) limits.limits.push_back(more);
    return search(job, default_space(grid.owned.model, grid.owned.training, grid.owned.cluster.device,
                                     grid.owned.cluster.gpus(), limits));
  };
  const SearchReport edge = narrowed("ao<73");
  ASSERT_FALSE(edge.ranked.empty());
  EXPECT_EQ(edge.ranked.front().plan.activation_offload, 72);
  EXPECT_TRUE(narrowed("ao<=64").ranked.empty());

  const SearchSpace halves = grid.space("pp=2,vp=1");
  Choice all;
  const auto last =
      std::ranges::find(halves.activation_offload, int{ActivationOffload::all}, &ActivationOffload::layers);
  ASSERT_NE(last, halves.activation_offload.end());
  all.activation_offload = small(static_cast<std::size_t>(last - halves.activation_offload.begin()));
  EXPECT_EQ(plan_of(halves, all).activation_offload, 40);
}

// What is moved, and so the best, does not depend on how many are shown.
TEST(OffGrid, IsTheSameWhateverIsShown) {
  const SearchGrid grid("llama-33b", "3x8xa800", "megatron-core", 48, 4096);
  SearchOptions options;
  options.top = 1;
  const SearchReport one = search(grid.owned.job(), grid.space(), options);
  options.top = 5;
  const SearchReport five = search(grid.owned.job(), grid.space(), options);
  ASSERT_EQ(one.ranked.size(), 1u);
  ASSERT_EQ(five.ranked.size(), 5u);
  EXPECT_EQ(one.ranked.front().plan, five.ranked.front().plan);
  EXPECT_TRUE(five.ranked.front().before_refinement);  // it was moved, so that this says something
}

// Points of a front are moved within their limits of memory; the first is the one answer to the question.
TEST(OffGrid, TheFrontIsMovedAsTheAnswerIs) {
  const SearchGrid grid("llama-33b", "3x8xa800", "megatron-core", 48, 4096);
  const Job job = grid.owned.job();
  const SearchSpace space = grid.space("pp=1,cp=1");
  SearchOptions options;
  options.move_layers = false;
  const ParetoFront still = pareto_front(job, space, options);
  EXPECT_EQ(still.report.refined, 0u);
  options.move_layers = true;
  const ParetoFront front = pareto_front(job, space, options);
  const RankedPlan answer = search(job, space, options).ranked.front();
  ASSERT_TRUE(answer.before_refinement);
  EXPECT_EQ(front.plans.front().plan, answer.plan);
  EXPECT_EQ(front.plans.front().before_refinement, answer.before_refinement);
  EXPECT_LT(front.plans.front().simulated, still.plans.front().simulated);
  EXPECT_EQ(front.report.best_bound, still.report.best_bound);
  EXPECT_GT(std::ranges::count_if(front.plans, &RankedPlan::off_grid), 1);
  std::int64_t limit = job.cluster.device.memory.v;
  for (const RankedPlan& r : front.plans) {
    EXPECT_LE(r.prediction.memory.peak.v, limit) << plan_key(r.plan);
    EXPECT_FALSE(unlawful(job, r.plan)) << plan_key(r.plan);
    limit = static_cast<std::int64_t>(0.9 * static_cast<double>(r.prediction.memory.peak.v));
  }
}

// What the plain question shows is no faster than the point of the front within whose limit it lies, moved as both are.
TEST(OffGrid, NoPointOfTheFrontIsBeatenByAShownLayout) {
  const SearchGrid grid("gpt3-13b", "5x4xh100", "sextant", 48, 2048);
  const Job job = grid.owned.job();
  const SearchSpace space = grid.space("tp=1,pp=5,vp=8,oo=0,rec=none");
  SearchOptions options;
  const ParetoFront front = pareto_front(job, space, options);
  options.top = 8;
  const std::vector<RankedPlan> shown = search(job, space, options).ranked;
  ASSERT_GT(std::ranges::count_if(shown, &RankedPlan::off_grid), 2);
  int compared = 0;
  for (std::size_t i = 1; i < front.plans.size(); ++i) {
    const auto limit = 0.9 * static_cast<double>(front.plans[i - 1].prediction.memory.peak.v);
    for (const RankedPlan& r : shown) {
      if (static_cast<double>(r.prediction.memory.peak.v) > limit) continue;
      EXPECT_GE(r.simulated.v, front.plans[i].simulated.v * (1 - 2e-6))
          << plan_key(r.plan) << " against " << plan_key(front.plans[i].plan);
      ++compared;
    }
  }
  EXPECT_GT(compared, 2);
}

// 100 * 0.07 is more than 7.
TEST(OffGrid, EveryShareCanBePinned) {
  const SearchGrid grid("llama-7b", "1x4xa100-40gb", "megatron-core", 64, 4096);
  for (int percent = 0; percent <= 100; ++percent) {
    const std::vector<double> shares = grid.space(fmt::format("oo={}", percent)).optimizer_offload;
    ASSERT_EQ(shares.size(), 1u) << percent;
    EXPECT_EQ(shares.front(), percent / 100.0);
  }
  EXPECT_TRUE(parse_plan_limits("oo<=7", "--limit").admits(parse_plan_key("dp4.z1.mbs1.oo7")));
  EXPECT_FALSE(parse_plan_limits("oo<7", "--limit").admits(parse_plan_key("dp4.z1.mbs1.oo7")));
}

TEST(OffGrid, LeavesWhatIsPinned) {
  const SearchGrid grid("llama-7b", "1x4xa100-40gb", "paddle-llama", 64, 4096);
  const SearchReport pinned = search(grid.owned.job(), grid.space("rec=full4,oo=0,ao=0"));
  ASSERT_FALSE(pinned.ranked.empty());
  EXPECT_EQ(pinned.ranked.front().plan.recompute.layers, 4);
  EXPECT_EQ(pinned.refined, 0u);
}

}  // namespace
}  // namespace sextant
