// Records of a tracer joined to operations. System: synthetic records in the forms that CUPTI delivers them (calls and
// kernels in any order, several kernels of one call, other threads' kernels, kernels without times). Expectation: the
// same times whatever the order, nothing of another step or rank, and every record that is left out is counted.
#include "profiler/activity_join.hpp"

#include <algorithm>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace sextant::testing {
namespace {

constexpr OpId kLastOp = std::numeric_limits<OpId>::max();

std::map<std::uint64_t, TaggedTime> take_step(ActivityJoin& join, int rank, std::uint32_t step) {
  return join.take(operation_tag(rank, step, 0), operation_tag(rank, step, kLastOp));
}

TEST(ActivityJoin, TagsAreOrderedByRankStepAndOperation) {
  EXPECT_LT(operation_tag(0, 7, kLastOp), operation_tag(0, 8, 0));
  EXPECT_LT(operation_tag(0, 0xfffff, kLastOp), operation_tag(1, 0, 0));
  EXPECT_EQ(operation_of(operation_tag(4095, 12, 77)), 77u);
}

TEST(ActivityJoin, AnOperationLastsFromItsFirstKernelToItsLast) {
  ActivityJoin join;
  const std::uint64_t tag = operation_tag(0, 1, 5);
  join.add(TaggedCall{10, tag});
  join.add(TaggedCall{11, tag});
  join.add(GpuActivity{10, 1000, 1400});
  join.add(GpuActivity{11, 1500, 1900});
  join.add(GpuActivity{11, 1850, 2000});  // of the same call, beside the one before
  const auto taken = take_step(join, 0, 1);
  ASSERT_EQ(taken.size(), 1u);
  const TaggedTime& t = taken.at(tag);
  EXPECT_EQ(t.first_ns, 1000u);
  EXPECT_EQ(t.last_ns, 2000u);
  EXPECT_EQ(t.busy_ns, 900u) << "400 + 400 + the 100 that do not overlap";
  EXPECT_EQ(t.activities, 3);
  EXPECT_TRUE(take_step(join, 0, 1).empty()) << "taken once";
}

TEST(ActivityJoin, RecordsInAnyOrder) {
  struct Record {
    bool call;
    TaggedCall tagged;
    GpuActivity activity;
  };
  std::vector<Record> records;
  for (OpId op = 0; op < 40; ++op)
    for (std::uint32_t k = 0; k < 3; ++k) {
      const std::uint32_t call = 1 + op * 3 + k;
      records.push_back({true, {call, operation_tag(static_cast<int>(op % 2), 3, op)}, {}});
      records.push_back({false, {}, {call, 1000 * op + 100 * k + 1, 1000 * op + 100 * k + 61}});
    }
  const auto joined = [](const std::vector<Record>& in) {
    ActivityJoin join;
    for (const Record& r : in) r.call ? join.add(r.tagged) : join.add(r.activity);
    auto both = take_step(join, 0, 3);
    both.merge(take_step(join, 1, 3));
    return both;
  };
  const auto expected = joined(records);
  ASSERT_EQ(expected.size(), 40u);
  std::mt19937 random(static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed()));
  for (int trial = 0; trial < 20; ++trial) {
    std::ranges::shuffle(records, random);
    const auto got = joined(records);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [tag, t] : expected) {
      EXPECT_EQ(got.at(tag).first_ns, t.first_ns);
      EXPECT_EQ(got.at(tag).last_ns, t.last_ns);
      EXPECT_EQ(got.at(tag).busy_ns, 180u);
    }
  }
}

TEST(ActivityJoin, StepsAndRanksApart) {
  ActivityJoin join;
  join.add(TaggedCall{1, operation_tag(0, 1, 5)});
  join.add(GpuActivity{1, 10, 20});
  join.add(TaggedCall{2, operation_tag(0, 2, 5)});
  join.add(GpuActivity{2, 30, 40});
  join.add(TaggedCall{3, operation_tag(1, 2, 5)});
  join.add(GpuActivity{3, 50, 60});
  EXPECT_EQ(take_step(join, 0, 2).size(), 1u);
  EXPECT_EQ(take_step(join, 0, 1).size(), 1u);
  EXPECT_EQ(take_step(join, 1, 2).begin()->second.first_ns, 50u);
  // A call's number is forgotten with its tag: late records of it belong to nobody.
  join.add(GpuActivity{2, 70, 80});
  for (int i = 0; i <= ActivityJoin::kPatience; ++i) EXPECT_TRUE(take_step(join, 0, 2).empty());
  EXPECT_EQ(join.untagged(), 1);
}

TEST(ActivityJoin, WhatIsLeftOutIsCounted) {
  ActivityJoin join;
  join.add(TaggedCall{1, operation_tag(0, 1, 5)});
  join.add(GpuActivity{1, 0, 0});     // CUPTI had no room for its times
  join.add(GpuActivity{1, 90, 80});   // nor does time run backwards
  join.add(GpuActivity{77, 10, 20});  // enqueued by a library's own thread
  EXPECT_TRUE(take_step(join, 0, 1).empty());
  EXPECT_EQ(join.untimed(), 2);
  EXPECT_EQ(join.untagged(), 0) << "its call may still be told";
  for (int i = 0; i < ActivityJoin::kPatience; ++i) take_step(join, 0, 9);
  EXPECT_EQ(join.untagged(), 1);
}

TEST(ActivityJoin, TracedSpansReplaceThoseOfEvents) {
  std::vector<Span> spans = {{0, 1}, {1, 2}, {2, 3}};
  const std::map<std::uint64_t, TaggedTime> traced = {
      {operation_tag(3, 9, 1), {2'000'000'000, 2'500'000'000, 1, 1}},
      {operation_tag(3, 9, 900), {1, 2, 1, 1}}};  // of no op
  EXPECT_EQ(retime(spans, traced, 1'000'000'000), 1);
  EXPECT_EQ(spans[0].end, 1) << "not traced";
  EXPECT_DOUBLE_EQ(spans[1].start, 1.0);
  EXPECT_DOUBLE_EQ(spans[1].end, 1.5);
  EXPECT_EQ(spans[2].start, 2);
  // The mark of a step may be later than a kernel by what clocks differ.
  retime(spans, traced, 2'000'001'000);
  EXPECT_DOUBLE_EQ(spans[1].start, -1e-6);
}

}  // namespace
}  // namespace sextant::testing
