// Unit: what a step said about the machine, from the spans of its ranks. Expectation: each rank's own work by itself, collectives
// between nodes by the rank that came last; the same whether ranks are told of one by one or all together.
#include "planner/adaptation/step_observer.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "core/graph/op_groups.hpp"
#include "core/plan/plan_links.hpp"
#include "planner/lowering/lower.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

constexpr double kSound_s = 1e-3;  // each op
constexpr std::int64_t kStep = 7;

class StepObserverTest : public ::testing::Test {
 protected:
  StepObserver observer() const {
    return {graph_, std::vector<Seconds>(graph_.ops.size(), Seconds(kSound_s)), *job_.topology, 2};
  }
  // Rank 5 computes three times as long as it should. In collectives ranks of node 1 wait for two, the last to come for one.
  std::vector<Span> spans(int rank) const {
    std::vector<Span> spans(graph_.ops.size());
    for (OpId id = 0; id < graph_.ops.size(); ++id) {
      const bool own = computes_alone(graph_.ops[id]);
      spans[id] = {1.0, 1.0 + kSound_s * (own ? (rank == 5 ? 3 : 1) : rank % 2 == 0 ? 4 : 2)};
    }
    return spans;
  }

  testing::OwnedJob job_ = testing::small_job(2, 4, 4);
  ParallelPlan plan_ = parse_plan_key("dp8.z1");
  ExecutionGraph graph_ =
      lower(job_.model, job_.training, plan_links(*job_.topology, plan_), plan_, job_.stack);
};

TEST_F(StepObserverTest, SaysWhichRankIsSlowAndWhatTheNetworkTook) {
  StepObserver observer = this->observer();
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_FALSE(observer.take()) << "before all ranks are known";
    observer.add(kStep, observer.view(rank, spans(rank)), 1);
  }
  EXPECT_FALSE(observer.take()) << "before it is known how long the step took";
  observer.step_took(kStep, Seconds(0.5));
  const auto seen = observer.take();
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->step, kStep);
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_NEAR(seen->compute[static_cast<std::size_t>(rank)], rank == 5 ? 3 : 1, 1e-9) << rank;
  ASSERT_EQ(seen->network.size(), 2u);
  for (const double times : seen->network) EXPECT_NEAR(times, 2, 1e-9) << "not 4, of those that waited";
  EXPECT_FALSE(observer.take()) << "once";
}

TEST_F(StepObserverTest, ViewsOfOthersAddUpToTheSame) {
  StepObserver one_by_one = observer(), together = observer();
  StepView all = together.view(7, spans(7));
  one_by_one.add(kStep, all, 1);
  for (int rank = 0; rank < 7; ++rank) {
    const StepView view = one_by_one.view(rank, spans(rank));
    one_by_one.add(kStep, view, 1);
    all.add(view);
  }
  together.add(kStep, all, 8);
  for (StepObserver* observer : {&one_by_one, &together}) observer->step_took(kStep, Seconds(0.5));
  const auto expected = one_by_one.take(), seen = together.take();
  ASSERT_TRUE(expected && seen);
  EXPECT_EQ(seen->compute, expected->compute);
  EXPECT_EQ(seen->network, expected->network);

  StepObserver without = observer();  // negative control: rank 5 has said nothing
  StepView less = without.view(0, spans(0));
  for (const int rank : {1, 2, 3, 4, 6, 7}) less.add(without.view(rank, spans(rank)));
  without.add(kStep, less, 8);
  without.step_took(kStep, Seconds(0.5));
  EXPECT_NE(without.take()->compute, expected->compute);
}

}  // namespace
}  // namespace sextant
