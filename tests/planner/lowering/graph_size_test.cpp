#include "planner/lowering/graph_size.hpp"

#include <gtest/gtest.h>

#include "core/plan/plan_key.hpp"
#include "core/plan/plan_limits.hpp"
#include "planner/answers/lowest_memory.hpp"
#include "planner/search/search.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

TEST(GraphSize, MoreMicroBatchesThanAGraphHoldsAreRefused) {
  testing::OwnedJob owned = testing::small_job(1, 4, 80);
  owned.training.global_batch = 720720;
  owned.finish();
  const Job job = owned.job();
  ParallelPlan plan = parse_plan_key("tp4.mbs1");
  const auto refused = unlawful(job, plan);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->text.find("micro-batches of a step are 720720, expected at most 13107 with 80 layers"),
            std::string::npos)
      << refused->text;
  plan.micro_batch = 60;  // 12,012 of them
  EXPECT_FALSE(unlawful(job, plan));
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus(),
                    parse_plan_limits("tp=4,dp=1,cp=1,pp=1", "--fix"));
  SearchOptions options;
  options.top = 1;
  options.budget_s = 0.1;
  const SearchReport report = search(job, space, options);
  EXPECT_EQ(report.outcomes.total(), space.size());
  for (const RankedPlan& r : report.ranked)
    EXPECT_LE(std::int64_t{microbatches(r.plan, owned.training)} * 80, kMostPasses);
  // Nor does the search for the least memory name one that nothing can simulate, which took all memory of the machine.
  const LowestMemoryLayout least = lowest_memory_layout(job, space);
  if (least.plan) {
    EXPECT_LE(std::int64_t{microbatches(*least.plan, owned.training)} * 80, kMostPasses);
  }
}

}  // namespace
}  // namespace sextant
