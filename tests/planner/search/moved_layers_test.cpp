// Layers moved between stages behind a search, against the fastest of all cuts.
#include <algorithm>
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "core/plan/plan_key.hpp"
#include "core/plan/plan_limits.hpp"
#include "core/plan/stage_cuts.hpp"
#include "planner/search/search.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

using testing::keys;
using testing::OwnedJob;

// Few micro-batches through many model chunks: where the layers lie decides, and no rule knows it.
struct Pipeline {
  OwnedJob owned = testing::small_job(1, 4, 10);
  Pipeline() {
    owned.training.global_batch = 4;
    owned.model.vocab_size = 32000;
    owned.finish();
  }
  SearchSpace space(const std::string& more = "") const {
    return default_space(
        owned.model, owned.training, owned.cluster.device, 4,
        parse_plan_limits("tp=1,cp=1,pp=4,vp=2,mbs=1,rec=none,oo=0,po=off,ao=0,b=0,lb=1,z=0" + more,
                          "--fix"));
  }
};

// The fastest of all cuts, by brute force.
double fastest_cut(const Job& job, ParallelPlan plan) {
  double least = INFINITY;
  SimulateScratch scratch;
  const int n_chunks = plan.pp * plan.vp;
  const auto cut = [&](auto self, int first) -> void {
    const int chunk = static_cast<int>(plan.chunks.size()), left = job.model.n_layers - first;
    const bool outer = chunk == 0 || chunk == n_chunks - 1;
    for (int count = chunk == n_chunks - 1 ? left : (outer ? 0 : 1); count <= left; ++count) {
      plan.chunks.push_back({first, count});
      if (chunk < n_chunks - 1)
        self(self, first + count);
      else if (!unlawful(job, plan))
        least = std::min(least, testing::simulated(job, plan, scratch));
      plan.chunks.pop_back();
    }
  };
  plan.chunks.clear();
  cut(cut, 0);
  return least;
}

TEST(Search, MovesLayersWhereThatHelps) {
  const Pipeline pipeline;
  const Job job = pipeline.owned.job();
  const SearchSpace space = pipeline.space();
  const SearchReport moved = search(job, space);
  SearchOptions options;
  options.move_layers = false;
  const SearchReport still = search(job, space, options);
  ASSERT_FALSE(moved.ranked.empty());
  const RankedPlan &first = moved.ranked.front(), &member = still.ranked.front();
  EXPECT_FALSE(member.before_moves);
  EXPECT_EQ(still.moved, 0u);
  ASSERT_TRUE(first.before_moves) << plan_key(first.plan);
  EXPECT_LT(first.simulated.v, 0.99 * member.simulated.v);
  EXPECT_EQ(first.prediction.step, predict(job, first.plan).step);
  EXPECT_FALSE(unlawful(job, first.plan));
  // As fast as the best of all cuts, or nearly.
  const double fastest = fastest_cut(job, first.plan);
  EXPECT_GE(first.simulated.v, fastest * (1 - 1e-9));
  EXPECT_LE(first.simulated.v, fastest * 1.01);
  // What is proved is said of the space alone.
  EXPECT_TRUE(moved.exact);
  EXPECT_DOUBLE_EQ(moved.best_bound.v, member.prediction.step.v);
  EXPECT_EQ(moved.outcomes.by_outcome, still.outcomes.by_outcome);
  EXPECT_GT(moved.moved, 0u);
  options.threads = 1;
  options.move_layers = true;
  const SearchReport one = search(job, space, options);
  EXPECT_EQ(keys(one), keys(moved));
  EXPECT_EQ(one.moved, moved.moved);
}

// Ten layers over four stages divide by nothing: a stack whose ends alone may differ, one that cuts by a rule of its own and one that
// cuts evenly find what they can, and nothing else.
TEST(Search, ProposesOnlyCutsThatTheStackCanMake) {
  for (const UnevenStages able :
       {UnevenStages::ends, UnevenStages::partition_method, UnevenStages::seg_method,
        UnevenStages::block_compute_costs, UnevenStages::none}) {
    Pipeline pipeline;
    pipeline.owned.model.vocab_size =
        16000;  // a heavier head would leave nanotron's last stage without a layer
    pipeline.owned.stack.can.uneven_stages = able;
    pipeline.owned.finish();
    const Job job = pipeline.owned.job();
    const SearchSpace space = default_space(
        job.model, job.training, job.cluster.device, 4,
        parse_plan_limits("tp=1,cp=1,pp=4,vp=1,mbs=1,rec=none,oo=0,po=off,ao=0,b=0,lb=1,z=0", "--fix"));
    const SearchReport found = search(job, space);
    if (able == UnevenStages::none) {
      EXPECT_TRUE(found.ranked.empty());
      continue;
    }
    ASSERT_FALSE(found.ranked.empty()) << name(able);
    double least = INFINITY;
    for (const RankedPlan& r : found.ranked) {
      EXPECT_TRUE(can_cut(able, r.plan, layer_ranges(r.plan, job.model.n_layers), job.model))
          << name(able) << " " << plan_key(r.plan);
      EXPECT_FALSE(r.plan.chunks.empty()) << name(able);
      least = std::min(least, r.simulated.v);
    }
    // As fast as the best of all cuts that it can make, of which not all are members.
    const double fastest = fastest_cut(job, found.ranked.front().plan);
    EXPECT_GE(least, fastest * (1 - 1e-9)) << name(able);
    EXPECT_LE(least, fastest * 1.01) << name(able);
  }
  // Virtual stages: chunks of a stage alike, or embedding and head counted.
  Pipeline pipeline;
  pipeline.owned.model.n_layers = 14;
  pipeline.owned.stack.can.uneven_stages = UnevenStages::ends;
  pipeline.owned.finish();
  const Job job = pipeline.owned.job();
  const SearchReport found = search(job, pipeline.space());
  ASSERT_FALSE(found.ranked.empty());
  for (const RankedPlan& r : found.ranked)
    EXPECT_TRUE(can_cut(UnevenStages::ends, r.plan, job.model)) << plan_key(r.plan);
}

TEST(Search, MovesNoLayersThatMustStay) {
  Pipeline pipeline;
  EXPECT_EQ(search(pipeline.owned.job(), pipeline.space(",split=even")).moved, 0u);
  // Within the memory that there is.
  SearchOptions options;
  options.move_layers = false;
  options.memory_limit =
      search(pipeline.owned.job(), pipeline.space(), options).ranked.front().prediction.memory.peak;
  options.move_layers = true;
  const SearchReport tight = search(pipeline.owned.job(), pipeline.space(), options);
  ASSERT_FALSE(tight.ranked.empty());
  EXPECT_LE(tight.ranked.front().prediction.memory.peak, *options.memory_limit);
  pipeline.owned.stack.can.uneven_stages = UnevenStages::none;
  pipeline.owned.finish();
  EXPECT_EQ(search(pipeline.owned.job(), pipeline.space()).moved, 0u);
}

}  // namespace
}  // namespace sextant
