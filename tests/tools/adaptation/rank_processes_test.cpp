// Unit: what processes of a run that adapts tell each other, here between threads. Expectation: all have the view of all, and
// know whether rank 0 says something; what it says reaches all of them whole.
#include "tools/adaptation/rank_processes.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "runtime/communicators/make_communicator.hpp"

namespace sextant {
namespace {

constexpr int kRanks = 4;

TEST(RankProcesses, ViewsAreSharedAndRankZeroIsHeard) {
  std::vector<StepView> seen(kRanks);
  std::vector<int> told(kRanks), silent(kRanks);
  std::vector<std::string> heard(kRanks);
  run_local_ranks(kRanks, [&](Communicator& world) {
    RankProcesses processes(everyone(world));
    const auto rank = static_cast<std::size_t>(world.rank());
    EXPECT_EQ(processes.decides(), rank == 0);
    StepView view{.compute = std::vector<double>(kRanks),
                  .collectives = {INFINITY, 2.0 + static_cast<double>(rank)}};
    view.compute[rank] = 1 + static_cast<double>(rank);
    silent[rank] = processes.share(view, rank != 0);  // who does not decide has nothing to say
    told[rank] = processes.share(view, rank == 0);
    heard[rank] = processes.hear(rank == 0 ? "another layout" : "not mine to say");
    seen[rank] = view;
  });
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(seen[rank].compute, (std::vector<double>{1, 2, 3, 4}));
    EXPECT_EQ(seen[rank].collectives, (std::vector<double>{INFINITY, 2}));
    EXPECT_FALSE(silent[rank]);
    EXPECT_TRUE(told[rank]);
    EXPECT_EQ(heard[rank], "another layout");
  }
}

}  // namespace
}  // namespace sextant
