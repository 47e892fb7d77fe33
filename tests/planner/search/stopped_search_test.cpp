// A search that is told to stop: it says so, and has an answer all the same.
#include <algorithm>
#include <atomic>

#include <gtest/gtest.h>

#include "core/plan/plan_limits.hpp"
#include "planner/search/search.hpp"
#include "tests/planner/search/search_support.hpp"
#include "tests/support/sanitized.hpp"

namespace sextant {
namespace {

using testing::OwnedJob;

TEST(Search, StopsWhenToldAndSaysSo) {
  const OwnedJob owned = testing::small_job(2, 4, 8);
  const Job job = owned.job();
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  const SearchReport whole = search(job, space);
  std::atomic<bool> cancel = false;
  SearchOptions options;
  options.cancel = &cancel;
  options.progress = [&](std::uint64_t, Seconds) { cancel = true; };  // at the first plan found
  const SearchReport report = search(job, space, options);
  EXPECT_FALSE(report.exact);
  EXPECT_EQ(report.stopped, "interrupted");
  EXPECT_GT(report.outcomes[Outcome::unvisited], 0u);
  EXPECT_EQ(report.outcomes.total(), space.size());
  ASSERT_FALSE(report.ranked.empty());
  EXPECT_LE(report.best_bound, whole.ranked.front().prediction.step);
  EXPECT_GE(report.ranked.front().simulated, whole.ranked.front().simulated);
  EXPECT_TRUE(whole.exact);
  EXPECT_EQ(whole.outcomes[Outcome::unvisited], 0u);
}

// Told to stop before it begins, a search still answers: with a layout that fits when there is one, also where nothing
// but the lowest-memory members does; and that nothing fits only when that is proved.
TEST(Search, AlwaysHasAnAnswer) {
  int tight = 0;
  for (const double memory_GiB : {79.0, 0.4, 0.2, 0.1, 0.05}) {
    OwnedJob owned = testing::small_job(1, 4, 8);
    owned.cluster.device.memory = from_gib(memory_GiB);
    owned.finish();
    const Job job = owned.job();
    const SearchSpace space =
        default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
    SearchOptions options;
    options.top = 1;
    const SearchReport whole = search(job, space, options);
    const std::atomic<bool> cancel = true;
    options.cancel = &cancel;
    const SearchReport stopped = search(job, space, options);
    if (kSanitized && stopped.ranked.empty() && !whole.ranked.empty())
      continue;  // half a second after Ctrl-C is too little for it
    EXPECT_EQ(stopped.ranked.empty(), whole.ranked.empty()) << memory_GiB;
    EXPECT_EQ(stopped.outcomes.total(), space.size());
    tight += whole.ranked.empty() ? 1 : 0;
    if (whole.ranked.empty()) {
      EXPECT_TRUE(stopped.exact);
      continue;
    }
    EXPECT_EQ(stopped.stopped, "interrupted");
    EXPECT_LE(stopped.ranked.front().prediction.memory.peak, owned.cluster.device.memory);
    EXPECT_GE(stopped.ranked.front().simulated, whole.ranked.front().simulated);
    EXPECT_LE(stopped.best_bound, whole.ranked.front().prediction.step);
  }
  EXPECT_GE(tight, 1) << "some memory must be too small for everything";
}

// Where no guess of a practitioner is a member, the way straight down the tree finds one.
TEST(Search, DivesWhenNoGuessIsAMember) {
  const OwnedJob owned = testing::small_job(1, 4, 8);
  const SearchSpace space = default_space(owned.model, owned.training, owned.cluster.device,
                                          owned.cluster.gpus(), parse_plan_limits("dp=4,sd=2", "--fix"));
  const std::atomic<bool> cancel = true;
  SearchOptions options;
  options.cancel = &cancel;
  const SearchReport report = search(owned.job(), space, options);
  ASSERT_EQ(report.ranked.size(), 1u);
  EXPECT_EQ(report.ranked.front().plan.shards(), 2);
  EXPECT_EQ(report.outcomes[Outcome::simulated], 1u);
  EXPECT_EQ(report.outcomes.total(), space.size());
}

}  // namespace
}  // namespace sextant
