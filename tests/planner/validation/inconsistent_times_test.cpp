// A measured time that does not go with its neighbours is found by the measured times alone; what is merely slow is not.
#include "planner/validation/inconsistent_times.hpp"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/measured.hpp"

namespace sextant {
namespace {

RunRow timed_row(int micro_batch, int zero_stage, double seconds) {
  RunRow row;
  row.run_id = "r" + std::to_string(micro_batch) + "z" + std::to_string(zero_stage);
  row.source = "s";
  row.group_id = "g";
  row.plan.dp = 8;
  row.plan.micro_batch = micro_batch;
  row.plan.zero_stage = zero_stage;
  row.step_time = Seconds(seconds);
  return row;
}

// As one published run is: twice what the same layout takes with the next micro-batch, and with ZeRO 1.
TEST(InconsistentTimes, ByTwoThatAgree) {
  std::vector<RunRow> rows = {timed_row(1, 0, 0.527), timed_row(2, 0, 1.02), timed_row(2, 1, 0.531),
                              timed_row(1, 1, 0.524)};
  const auto found = inconsistent_times(rows);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].row, 1U);
  EXPECT_EQ(found[0].neighbours, (std::vector<std::size_t>{0, 2}));
  const auto agreed = without(rows, found);
  EXPECT_FALSE(agreed[1].step_time);
  EXPECT_TRUE(agreed[0].step_time && agreed[2].step_time && agreed[3].step_time);
  rows[1].step_time = Seconds(0.3);  // too fast is wrong as well
  EXPECT_EQ(inconsistent_times(rows).size(), 1U);
}

// Negative controls: 1.25 times is not enough, nor is what one neighbour says, or two that do not agree, or one that differs in
// another thing.
TEST(InconsistentTimes, OnlyByTwoThatAgree) {
  const std::vector<RunRow> rows = {timed_row(1, 0, 0.527), timed_row(2, 0, 1.02), timed_row(2, 1, 0.531)};
  const auto none = [](std::vector<RunRow> changed) { return inconsistent_times(changed).empty(); };
  ASSERT_FALSE(none(rows));
  auto changed = rows;
  changed[1].step_time = Seconds(0.66);
  EXPECT_TRUE(none(changed)) << "1.25 times";
  changed = rows;
  changed[2].step_time = Seconds(0.8);
  EXPECT_TRUE(none(changed)) << "they do not agree";
  changed = rows;
  changed[2].plan.recompute.kind = RecomputeKind::full;
  EXPECT_TRUE(none(changed)) << "another thing as well";
  changed = rows;
  changed[0].plan.micro_batch = 8;
  EXPECT_TRUE(none(changed)) << "two doublings";
  changed = rows;
  changed[0].group_id = "h";
  EXPECT_TRUE(none(changed)) << "another group";
  changed = rows;
  changed[0].plan.zero_stage = 1;
  EXPECT_TRUE(none(changed)) << "both at once";
}

// Of the published runs one is: neither fits nor scores would need more than that.
TEST(InconsistentTimes, OneOfThePublishedRunsIs) {
  SEXTANT_NEEDS_MEASURED();
  const auto rows = test::all_runs();
  const auto found = inconsistent_times(rows);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(rows[found[0].row].run_id, "nt-0348");
}

}  // namespace
}  // namespace sextant
