// What repeats say. Expectation: middle and quartiles as one computes them by hand, whatever the order; one sample of
// another kind is counted as such and leaves the middle where it was; a clock's step does not make outliers.
#include "profiler/sample_summary.hpp"

#include <gtest/gtest.h>

namespace sextant::testing {
namespace {

TEST(SampleSummary, OfNoneAndOfOne) {
  EXPECT_EQ(summarize({}).samples, 0);
  EXPECT_EQ(summarize({}).mean, 0);
  const SampleSummary one = summarize({3.5});
  EXPECT_EQ(one.median, 3.5);
  EXPECT_EQ(one.mean, 3.5);
  EXPECT_EQ(one.spread, 0);
  EXPECT_EQ(one.outliers, 0);
}

TEST(SampleSummary, QuartilesByHand) {
  const SampleSummary s = summarize({5, 1, 4, 2, 3});
  EXPECT_EQ(s.median, 3);
  EXPECT_EQ(s.spread, 2);  // 4 - 2
  EXPECT_EQ(s.mean, 3);
  EXPECT_EQ(s.samples, 5);
  EXPECT_DOUBLE_EQ(summarize({4, 1, 2, 3}).median, 2.5) << "between the two in the middle";
  EXPECT_DOUBLE_EQ(summarize({4, 1, 2, 3}).spread, 1.5);  // 3.25 - 1.75
}

TEST(SampleSummary, OneOfAnotherKind) {
  std::vector<double> samples = {10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6};
  EXPECT_EQ(summarize(samples).outliers, 0);
  samples.push_back(40);
  const SampleSummary s = summarize(samples);
  EXPECT_EQ(s.outliers, 1);
  EXPECT_NEAR(s.median, 10.35, 1e-9);
  EXPECT_GT(s.mean, 13) << "the mean has it all the same";
  samples.push_back(0.5);
  EXPECT_EQ(summarize(samples).outliers, 2) << "on either side";
}

// Ticks of a clock: all alike but for the last digit, so that the quartiles coincide.
TEST(SampleSummary, AlikeButForTheClock) {
  EXPECT_EQ(summarize({100, 100, 100, 100, 100, 100.9}).outliers, 0);
  EXPECT_EQ(summarize({100, 100, 100, 100, 100, 101.1}).outliers, 1) << "control";
}

}  // namespace
}  // namespace sextant::testing
