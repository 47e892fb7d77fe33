// System: a run whose layout changes between two steps, its state carried in memory. Expectation: what arrives is what was
// held, to the bit, in every pair of layouts; under the same layout the run goes on as if nothing had happened; what nobody
// has is missed.
#include <gtest/gtest.h>

#include "tests/runtime/checkpoint/checkpoint_trial.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kLayouts[] = {"mbs8",
                                    "dp4.z1.mbs1.b4K",
                                    "dp4.z0.mbs2",
                                    "dp4.z3.sd2.mbs1",
                                    "tp2.sp.pp2.mbs1.dp2.z1.b4K",
                                    "dp3.z0.mbs1",
                                    "dp2.z3.mbs1.po.oo60",
                                    "dp4.z1.mbs1.b4K.sw3-3-3-1"};

// Trains `n` steps in all, and pauses there with its state in `carried`.
void go_and_pause(CheckpointTrial& trial, CarriedState& carried, std::int64_t n) {
  trial.run.carried = &carried;
  trial.run.time_to_change = [&trial, n] { return trial.steps.back().step + 1 == n; };
  trial.go(CheckpointTrial::kSteps);
}

// A batch that three ranks can share as well.
void divisible(CheckpointTrial& trial) { trial.training = runnable_training(24); }

class StateMoves : public ::testing::TestWithParam<const char*> {};

TEST_P(StateMoves, AnyOtherLayoutGoesOnFromIt) {
  CheckpointTrial whole(GetParam(), {}, divisible), first(GetParam(), {}, divisible);
  ASSERT_EQ(whole.go(8).error, "");
  CarriedState carried;
  go_and_pause(first, carried, 5);
  ASSERT_EQ(first.error, "");
  ASSERT_EQ(first.steps.size(), 5U);
  ASSERT_TRUE(carried.present());
  for (const char* other : kLayouts) {  // each takes what is carried, which stays
    SCOPED_TRACE(other);
    CheckpointTrial second(other, {}, divisible);
    second.run.carried = &carried;
    ASSERT_EQ(second.go(8).error, "");
    EXPECT_EQ(second.at_start, first.at_end);
    EXPECT_NE(first.at_start, second.at_start) << "control: something was learnt";
    ASSERT_EQ(second.steps.size(), 3U);
    EXPECT_EQ(second.steps.front().step, 5);
    if (std::string_view(other) == GetParam()) {
      EXPECT_EQ(second.losses(), whole.losses(5));
      EXPECT_EQ(second.at_end, whole.at_end);
    }
    for (std::size_t s = 0; s < 3; ++s) EXPECT_NEAR(second.steps[s].loss / whole.steps[s + 5].loss, 1, 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, StateMoves, ::testing::ValuesIn(kLayouts), [](const auto& p) {
  std::string name = p.param;
  for (char& c : name)
    if (c == '.' || c == '-') c = '_';
  return name;
});

// What ranks hold of the state is as their weights say, in every bucket, and together once all of it.
TEST(UnequalShards, EachRankHoldsItsWeight) {
  const auto held = [](const char* key) {
    CheckpointTrial trial(key);
    CarriedState carried;
    go_and_pause(trial, carried, 2);
    EXPECT_EQ(trial.error, "") << key;
    std::vector<std::int64_t> bytes;
    for (const auto& rank : carried.ranks) bytes.push_back(rank->bytes());
    return bytes;
  };
  const auto equal = held("dp4.z1.mbs1.b4K");
  for (const char* key :
       {"dp4.z1.mbs1.b4K.sw3-3-2-1", "dp4.z2.mbs1.b4K.sw3-3-2-1", "dp4.z3.mbs1.oo50.sw3-3-2-1"}) {
    const auto bytes = held(key);
    ASSERT_EQ(bytes.size(), 4U) << key;
    EXPECT_EQ(bytes[0], 3 * bytes[3]) << key;
    EXPECT_EQ(bytes[1], 3 * bytes[3]) << key;
    EXPECT_EQ(bytes[2], 2 * bytes[3]) << key;
    EXPECT_NEAR(static_cast<double>(bytes[3]), 4 * static_cast<double>(equal[0]) / 9,
                0.1 * static_cast<double>(equal[0]))
        << key;
  }
  EXPECT_EQ(equal[0], equal[3]) << "control";
}

// Messages of several parts, whole rows and halves of rows, to and from each rank at once.
TEST(StateMove, LargeMessagesTravelInParts) {
  const auto large = [](CheckpointTrial& trial) { trial.model.vocab_size = 16384; };
  CheckpointTrial first("dp4.z1.mbs2", {}, large), second("tp2.sp.dp2.z1.mbs2", {}, large),
      third("tp4.sp.mbs2", {}, large);
  CarriedState carried;
  go_and_pause(first, carried, 1);
  ASSERT_EQ(first.error, "");
  for (CheckpointTrial* next : {&second, &third}) {
    next->run.carried = &carried;
    ASSERT_EQ(next->go(2).error, "");
    EXPECT_EQ(next->at_start, first.at_end);
  }
  third.run.steps = 3;
  EXPECT_GT(train(third.run).moved.most_bytes, 4 << 20);
}

// Replicas have what a lost rank held; shards of which there is one do not.
TEST(StateMove, WhatALostRankHeldComesFromReplicas) {
  for (const bool replicas : {true, false}) {
    CheckpointTrial first(replicas ? "dp4.z0.mbs2" : "dp4.z1.mbs2"), second("dp2.z1.mbs2");
    CarriedState carried;
    go_and_pause(first, carried, 4);
    ASSERT_EQ(first.error, "");
    carried.ranks[1].reset();
    second.run.carried = &carried;
    second.go(6);
    if (replicas) {
      EXPECT_EQ(second.error, "");
      EXPECT_EQ(second.at_start, first.at_end);
    } else {
      EXPECT_NE(second.error.find("pieces that no rank has"), std::string::npos) << second.error;
      EXPECT_TRUE(second.steps.empty());
    }
  }
}

// Every rank holds everything: nothing travels. From shards each rank lacks three quarters.
TEST(StateMove, OnlyWhatARankLacksTravels) {
  const auto moved = [](const char* from, const char* to) {
    CheckpointTrial first(from), second(to);
    CarriedState carried;
    go_and_pause(first, carried, 2);
    second.run.carried = &carried;
    second.run.steps = 3;
    return train(second.run).moved.bytes;
  };
  const std::int64_t bytes = 12 * parameter_counts(tiny_model(4)).total;
  EXPECT_EQ(moved("dp4.z0.mbs2", "dp2.tp2.sp.z0.mbs2"), 0);
  EXPECT_EQ(moved("dp4.z1.mbs2", "dp4.z0.mbs2"), 3 * bytes);
}

// From shards to replicas every rank receives three quarters of the state through its own link, both directions at once.
TEST(StateMove, TakesLittleMoreThanTheLinksAllow) {
  constexpr double kBytesPerSecond = 4e6;
  CheckpointTrial first("dp4.z1.mbs2"), second("dp4.z0.mbs2");
  CarriedState carried;
  go_and_pause(first, carried, 2);
  second.run.carried = &carried;
  second.run.shape = LinkShape{.ranks_per_node = 4,
                               .node_bandwidth = BytesPerSecond(kBytesPerSecond),
                               .node_latency = {},
                               .network_bandwidth = {},
                               .network_latency = {}};
  second.run.steps = 3;
  const RunResult result = train(second.run);
  const double allowed = static_cast<double>(result.moved.bytes) / 4 / kBytesPerSecond;
  EXPECT_GT(result.moved.took.v, 0.99 * allowed);
  if (!kSanitized) {
    EXPECT_LT(result.moved.took.v, 1.5 * allowed);
  }
  RecordProperty("moving_ms", static_cast<int>(1e3 * result.moved.took.v));
  RecordProperty("allowed_ms", static_cast<int>(1e3 * allowed));
}

// A pause commits what is being saved, and nothing of its own; the next layout saves on.
TEST(StateMove, SavesGoOnAcrossIt) {
  const TempDir folder;
  CheckpointTrial first("dp4.z1.mbs2", folder.path()), second("tp2.sp.dp2.z1.mbs2", folder.path());
  first.save.every = second.save.every = 2;
  CarriedState carried;
  go_and_pause(first, carried, 5);
  ASSERT_EQ(first.error, "");
  ASSERT_EQ(first.problems, std::vector<std::string>{});
  const auto paused = committed_checkpoints(folder.path());
  ASSERT_FALSE(paused.empty());
  EXPECT_GE(paused.back().step, 2);  // what is due while another is written is put off
  EXPECT_EQ(paused.back().step, first.saves.back().step);
  EXPECT_TRUE(first.saves.back().committed);
  second.run.carried = &carried;
  ASSERT_EQ(second.go(8).error, "");
  EXPECT_EQ(committed_checkpoints(folder.path()).back().step, 8);
  CheckpointTrial loaded("mbs8");
  ASSERT_EQ(loaded.from(folder.path()).go(9).error, "");
  EXPECT_EQ(loaded.at_start, second.at_end);
}

}  // namespace
}  // namespace sextant::testing
