// Who holds a run up. System: what ranks say of whom they wait for. Expectation: those who say nothing; else those at the
// end of every chain of waits that begins here.
#include "runtime/hold_ups.hpp"

#include <gtest/gtest.h>

namespace sextant {
namespace {

using Ranks = std::vector<int>;

TEST(HoldUps, WhoSaysNothing) {
  const HoldUps who = hold_ups_from(0, 4, {{0, {1}}, {1, {3}}, {2, {3}}});
  EXPECT_EQ(who.silent, Ranks{3});
  EXPECT_EQ(who.busy, Ranks{});
}

TEST(HoldUps, WhoIsWaitedForAndWaitsForNobody) {
  const HoldUps who = hold_ups_from(0, 5, {{0, {1}}, {1, {0, 3}}, {2, {}}, {3, {}}, {4, {3}}});
  EXPECT_EQ(who.silent, Ranks{});
  EXPECT_EQ(who.busy, Ranks{3});  // nothing here waits for rank 2
}

TEST(HoldUps, NobodyWhenAllWaitForOneAnother) {
  const HoldUps who = hold_ups_from(0, 2, {{0, {1}}, {1, {0}}});
  EXPECT_EQ(who.silent, Ranks{});
  EXPECT_EQ(who.busy, Ranks{});
}

}  // namespace
}  // namespace sextant
