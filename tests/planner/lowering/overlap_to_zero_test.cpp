// Reductions that a stack does not overlap from a ZeRO stage on hold up the backward pass, asked for or not; below it, and
// without the rule, they overlap.
#include <gtest/gtest.h>

#include "tests/planner/search/search_support.hpp"

namespace sextant {
namespace {

TEST(OverlapToZero, HoldsAboveTheStageAlone) {
  testing::OwnedJob job = testing::small_job(1, 4, 4);
  job.training.global_batch = 8;
  const auto step = [&](const std::string& key) {
    job.finish();
    SimulateScratch scratch;
    return testing::simulated(job.job(), parse_plan_key(key), scratch);
  };
  const std::string zero0 = "tp1.pp1.vp1.cp1.dp4.z0.mbs1", zero1 = "tp1.pp1.vp1.cp1.dp4.z1.mbs1";
  const double plain0 = step(zero0), plain1 = step(zero1), apart1 = step(zero1 + ".nogr");
  EXPECT_LT(plain1, apart1);
  job.stack.rules.grad_reduce_overlaps_to_zero = 0;
  EXPECT_EQ(step(zero0), plain0);
  EXPECT_GE(step(zero1), apart1);  // the same bytes, in more messages
  EXPECT_EQ(step(zero1 + ".nogr"), step(zero1));
  EXPECT_EQ(step(zero1 + ".b6400M"), step(zero1));
  job.stack.rules.grad_reduce_overlaps_to_zero = 1;
  EXPECT_EQ(step(zero1), plain1);
}

}  // namespace
}  // namespace sextant
