// Which layouts are worth trying: the best, others within its error, none a near copy of another.
#include "planner/answers/shortlist.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "planner/search/search.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

RankedPlan ranked(int tp, int pp, int micro_batch, double step_s) {
  RankedPlan r;
  r.plan.tp = tp;
  r.plan.pp = pp;
  r.plan.micro_batch = micro_batch;
  r.prediction.step = Seconds(step_s);
  r.prediction.step_lower = Seconds(step_s / 1.1);
  r.prediction.step_upper = Seconds(step_s * 1.1);
  return r;
}

TEST(Shortlist, TakesTheBestAndWhatDiffers) {
  const std::vector<RankedPlan> plans = {ranked(2, 2, 1, 10.0), ranked(2, 2, 2, 10.1), ranked(4, 1, 1, 10.5),
                                         ranked(1, 4, 2, 10.9), ranked(8, 1, 1, 11.2)};
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 2, 3}));  // 1 is a near copy of 0
  EXPECT_EQ(shortlist(plans, 1), (std::vector<std::size_t>{0}));
  // The last is too slow to be the best within its error; the near copy fills the place that is left.
  EXPECT_EQ(shortlist(plans, 5), (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_TRUE(shortlist({}, 3).empty());
}

// As for LLaMA-2-70B on 128 H100: the fastest differ in context parallelism, micro-batch and recompute alone.
TEST(Shortlist, PassesOverNearCopiesForAnotherKind) {
  std::vector<RankedPlan> plans = {ranked(1, 1, 2, 10.0), ranked(1, 1, 2, 10.1), ranked(1, 1, 4, 10.2),
                                   ranked(1, 1, 8, 10.3), ranked(2, 1, 4, 10.6), ranked(2, 4, 1, 10.9)};
  plans[1].plan.recompute.kind = RecomputeKind::full;
  plans[2].plan.cp = 2;
  plans[3].plan.cp = 4;
  plans[3].plan.recompute.kind = RecomputeKind::full;
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 4, 5}));
  plans[4].prediction.step_lower = plans[5].prediction.step_lower =
      Seconds(10.1);  // surely slower than the first
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 2, 3}));
}

TEST(Shortlist, HoldsOneWithRoomInMemory) {
  std::vector<RankedPlan> plans = {ranked(1, 1, 1, 10.0), ranked(2, 1, 2, 10.1), ranked(4, 1, 4, 10.2),
                                   ranked(8, 1, 4, 10.3)};
  const auto use = [&](std::size_t i, std::int64_t gibibytes, double chance) {
    plans[i].prediction.memory.peak = Bytes(gibibytes << 30);
    plans[i].prediction.chance_of_overflow = chance;
  };
  for (std::size_t i = 0; i < plans.size(); ++i) use(i, 76, 0.3);
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 1, 2}));
  use(3, 60, 0.3);
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 1, 3}));
  use(3, 74, 0.1);
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 1, 3}));
  use(3, 74, 0.2);
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 1, 2}));
  use(3, 60, 0.1);
  plans[3].prediction.step_lower = Seconds(10.1);  // room, but surely slower
  EXPECT_EQ(shortlist(plans, 3), (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Shortlist, NamesATieThatIsKnownMuchBetter) {
  std::vector<RankedPlan> plans = {ranked(16, 1, 1, 10.0), ranked(8, 2, 1, 10.05), ranked(4, 4, 1, 10.1),
                                   ranked(2, 8, 1, 11.0)};
  const auto known_to = [&](std::size_t i, double share) {
    Prediction& p = plans[i].prediction;
    p.step_upper = p.step * (1 + share);
    p.step_lower = p.step * (1 / (1 + share));
  };
  for (const std::size_t i : {1, 2}) plans[i].tie = true;
  known_to(0, 1.95);
  known_to(1, 0.30);
  known_to(2, 0.10);
  known_to(3, 0.05);
  EXPECT_EQ(lower_risk_tie(plans), 2U);  // the surest of the ties; 3 is none
  known_to(0, 0.25);
  EXPECT_EQ(lower_risk_tie(plans), 2U);
  known_to(0, 0.17);  // less than 1.8 times
  EXPECT_FALSE(lower_risk_tie(plans));
  EXPECT_FALSE(lower_risk_tie({}));
}

TEST(Shortlist, EmptyPlaceForTheMeasuredStepIsReadBack) {
  const TempDir folder;
  const auto file = folder.write("s.json", R"({"schema": "sextant.shortlist/1", "plans": []})");
  EXPECT_TRUE(load_shortlist(file).plans.empty());
  EXPECT_THROW(load_shortlist(folder.write("t.json", R"({"schema": "sextant.plan_file/1", "plans": []})")),
               ConfigError);
}

}  // namespace
}  // namespace sextant
