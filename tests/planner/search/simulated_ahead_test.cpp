// What a search that is stopped has simulated, and what it has not visited.
#include <atomic>

#include <gtest/gtest.h>

#include "planner/search/search.hpp"
#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

// Wherever a search is stopped, what it has simulated is counted so.
TEST(SimulatedAhead, IsCountedWhereASearchStops) {
  const testing::OwnedJob owned = testing::small_job(2, 4, 8);
  const SearchSpace space =
      default_space(owned.model, owned.training, owned.cluster.device, owned.cluster.gpus());
  for (const int stop_at : {1, 2, 3, 5, 8}) {
    std::atomic<bool> cancel = false;
    int told = 0;
    SearchOptions options;
    options.cancel = &cancel;
    options.move_layers = false;
    options.progress = [&](std::uint64_t, Seconds) { cancel = ++told >= stop_at; };
    const SearchReport report = search(owned.job(), space, options);
    if (report.exact) break;
    EXPECT_EQ(report.outcomes.total(), space.size());
    EXPECT_GE(report.outcomes[Outcome::simulated], report.ranked.size());
    EXPECT_GE(report.outcomes[Outcome::simulated], static_cast<std::uint64_t>(told > 0 ? 1 : 0));
  }
}

}  // namespace
}  // namespace sextant
