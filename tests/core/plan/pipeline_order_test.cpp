// The order of an interleaved schedule whose micro-batches the stages do not divide.
#include "core/plan/pipeline_order.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

namespace sextant {
namespace {

TEST(InterleavedGroup, IsTheStagesWhereTheyDivide) {
  for (const int m : {4, 8, 64}) EXPECT_EQ(interleaved_group(4, m), 4);
  EXPECT_EQ(interleaved_group(4, 3), 0);
}

// 13 over 4 stages: 5 leaves 3 and 6 leaves 1, fewer than the stages; 7 leaves 6.
TEST(InterleavedGroup, LeavesNoLastGroupBelowTheStages) {
  EXPECT_EQ(interleaved_group(4, 6), 6);
  EXPECT_EQ(interleaved_group(4, 10), 5);
  EXPECT_EQ(interleaved_group(4, 11), 6);
  EXPECT_EQ(interleaved_group(4, 13), 7);
}

// torch.distributed.pipelining: m / (m / pp) where m / pp divides m, which it requires. It takes fewer than pp as well.
TEST(InterleavedGroup, FromTheStagesOnIsThatOfPyTorch) {
  int shared = 0, own = 0;
  for (int pp = 2; pp <= 16; ++pp)
    for (int m = pp; m <= 200; ++m) {
      const int rounds = m / pp;
      ++(m % rounds == 0 ? shared : own);
      if (m % rounds != 0) continue;
      EXPECT_EQ(interleaved_group(pp, m), m / rounds) << pp << ' ' << m;
    }
  EXPECT_GT(shared, 500);
  EXPECT_GT(own, 500);
}

TEST(PipelineOrder, InterleavesAnyCountFromTheStagesOn) {
  for (int pp = 2; pp <= 6; ++pp)
    for (int vp = 2; vp <= 3; ++vp)
      for (int m = pp; m <= 4 * pp + 3; ++m) {
        const auto merged = merged_order(PipelineSchedule::interleaved, pp, vp, m);  // throws in a circle
        std::set<std::tuple<int, SlotKind, int, std::uint32_t>> seen;
        for (const StageSlot& s : merged)
          seen.insert({s.stage, s.slot.kind, s.slot.chunk, s.slot.microbatch});
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(2 * pp * vp * m)) << pp << ' ' << vp << ' ' << m;
        EXPECT_EQ(seen.size(), merged.size());
      }
}

// ScheduleInterleaved1F1B of three micro-batches over two stages with two chunks: one group of three.
TEST(PipelineOrder, OfThreeOverTwoStagesIsThatOfPyTorch) {
  const auto f = [](std::uint16_t chunk, std::uint32_t mb) { return Slot{SlotKind::forward, chunk, mb}; };
  const auto b = [](std::uint16_t chunk, std::uint32_t mb) { return Slot{SlotKind::backward, chunk, mb}; };
  EXPECT_EQ(pipeline_order(PipelineSchedule::interleaved, 2, 2, 3, 0),
            (std::vector<Slot>{f(0, 0), f(0, 1), f(0, 2), f(1, 0), f(1, 1), f(1, 2), b(1, 0), b(1, 1),
                               b(1, 2), b(0, 0), b(0, 1), b(0, 2)}));
  EXPECT_EQ(pipeline_order(PipelineSchedule::interleaved, 2, 2, 3, 1),
            (std::vector<Slot>{f(0, 0), f(0, 1), f(0, 2), f(1, 0), b(1, 0), f(1, 1), b(1, 1), f(1, 2),
                               b(1, 2), b(0, 0), b(0, 1), b(0, 2)}));
}

}  // namespace
}  // namespace sextant
