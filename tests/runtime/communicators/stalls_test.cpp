// Who holds a run up. System: what ranks say of whom they wait for. Expectation: those who say nothing; else those at the
// end of every chain of waits that begins here.
#include "runtime/communicators/stalls.hpp"

#include <gtest/gtest.h>

namespace sextant {
namespace {

using Ranks = std::vector<int>;
Answer waits(Ranks ranks, std::string state = "") { return {std::move(ranks), std::move(state)}; }

TEST(Stalls, WhoSaysNothing) {
  const Stalls who =
      stalls_from(0, 4, {{0, waits({1}, "own\n")}, {1, waits({3}, "one\n")}, {2, waits({3}, "two\n")}});
  EXPECT_EQ(who.states, "one\ntwo\n  rank 3: no answer\n") << "of the others";
  EXPECT_EQ(who.silent, Ranks{3});
  EXPECT_EQ(who.busy, Ranks{});
}

TEST(Stalls, WhoIsWaitedForAndWaitsForNobody) {
  const Stalls who = stalls_from(
      0, 5, {{0, waits({1})}, {1, waits({0, 3})}, {2, waits({})}, {3, waits({})}, {4, waits({3}, "four\n")}});
  EXPECT_EQ(who.silent, Ranks{});
  EXPECT_EQ(who.busy, Ranks{3});  // nothing here waits for rank 2
  EXPECT_EQ(who.states, "four\n");
}

TEST(Stalls, NobodyWhenAllWaitForOneAnother) {
  const Stalls who = stalls_from(0, 2, {{0, waits({1})}, {1, waits({0})}});
  EXPECT_EQ(who.silent, Ranks{});
  EXPECT_EQ(who.busy, Ranks{});
}

TEST(Stalls, AnswersTravelAsTheyAre) {
  for (const Answer& answer : {waits({}), waits({2, 0}, "  rank 1: in mlp\n"), waits({}, "a\0b")})
    EXPECT_EQ(unpacked(packed(answer)), answer);
  EXPECT_EQ(unpacked(packed(waits({7}, std::string(10'000, 'x')))), waits({7}, std::string(3000, 'x')));
  for (const char* torn : {"", "abc", "\x02\x01\x01\x01rank"}) EXPECT_EQ(unpacked(torn), waits({})) << torn;
}

}  // namespace
}  // namespace sextant
