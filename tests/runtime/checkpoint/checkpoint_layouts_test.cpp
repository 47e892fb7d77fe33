// System: a run that is saved under one layout and goes on under another, or the same. Expectation: what is loaded is what was
// saved, to the bit, in every layout; under the same layout the run goes on as if it had never stopped.
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/checkpoint/state_snapshot.hpp"
#include "tests/runtime/checkpoint/checkpoint_trial.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

constexpr const char* kLayouts[] = {
    "mbs8",
    "dp4.z1.mbs1.b4K",
    "tp2.sp.pp2.mbs1.dp2.z1.b4K",
    "dp2.z3.mbs1.po.oo60",
    "dp2.z1.mbs2.b4K.sw3-1",
#ifdef SEXTANT_LATTICE  // every pair of them
    "tp4.sp.mbs2",
    "pp4.mbs2",
    "tp2.sp.cp2.mbs1.dp2.z1",
    "pp2.mbs1.zb.dp2.z2.b4K",
    "dp4.z3.sd2.mbs1",
    "dp4.z3.sd2.mbs1.oo50.sw1-2",
    "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1",
    "dp2.z0.mbs1.oo30",
#endif
};

class Layouts : public ::testing::TestWithParam<const char*> {};

TEST_P(Layouts, GoesOnToTheBitAsIfItHadNotStopped) {
  const TempDir folder;
  constexpr int kHalf = 5;
  CheckpointTrial whole(GetParam()), first(GetParam(), folder.path()), second(GetParam());
  ASSERT_EQ(whole.go(CheckpointTrial::kSteps).error, "");
  ASSERT_EQ(first.go(kHalf).error, "");
  ASSERT_EQ(second.from(folder.path()).go(CheckpointTrial::kSteps).error, "");
  EXPECT_EQ(first.at_end, second.at_start);
  EXPECT_NE(first.at_start, second.at_start) << "control: something was learnt";
  ASSERT_EQ(second.steps.front().step, kHalf);
  EXPECT_EQ(second.losses(), whole.losses(kHalf));
  EXPECT_EQ(second.at_end, whole.at_end);
  EXPECT_EQ(first.losses(kHalf - 1), std::vector(1, whole.steps[kHalf - 1].loss));
}

// Saving in the middle changes nothing.
TEST_P(Layouts, SavingLeavesNoTrace) {
  const TempDir folder;
  CheckpointTrial plain(GetParam()), saved(GetParam(), folder.path());
  saved.save.every = 2;
  ASSERT_EQ(plain.go(CheckpointTrial::kSteps).error, "");
  ASSERT_EQ(saved.go(CheckpointTrial::kSteps).error, "");
  EXPECT_EQ(saved.losses(), plain.losses());
  EXPECT_EQ(saved.at_end, plain.at_end);
  EXPECT_GE(saved.saves.size(), 2U);
  for (const SaveEvent& save : saved.saves) {
    EXPECT_EQ(save.error, "");
    EXPECT_GT(save.bytes, 0);
  }
}

TEST_P(Layouts, AnyOtherLayoutLoadsItToTheBit) {
  const TempDir folder;
  CheckpointTrial saved(GetParam(), folder.path());
  constexpr int kHalf = 4;
  ASSERT_EQ(saved.go(kHalf).error, "");
  CheckpointTrial on(GetParam());
  ASSERT_EQ(on.from(folder.path()).go(kHalf + 3).error, "");
  for (const char* other : kLayouts) {
    CheckpointTrial loaded(other);
    ASSERT_EQ(loaded.from(folder.path()).go(kHalf + 3).error, "") << other;
    EXPECT_EQ(loaded.at_start, saved.at_end) << other;
    ASSERT_EQ(loaded.steps.size(), on.steps.size());
    for (std::size_t s = 0; s < on.steps.size(); ++s)
      EXPECT_NEAR(loaded.steps[s].loss / on.steps[s].loss, 1, 2e-5) << other << ", step " << s;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Layouts, ::testing::ValuesIn(kLayouts), [](const auto& p) {
  std::string name = p.param;
  for (char& c : name)
    if (c == '.' || c == '-') c = '_';
  return name;
});

TEST(CheckpointLayouts, TiedEmbeddingsAndBf16) {
  for (const bool tied : {false, true})
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp64}) {
      const auto change = [&](CheckpointTrial& t) {
        t.model.tied_embeddings = tied;
        t.training.compute = t.training.parameter = dtype;
        t.training.gradient = t.training.reduction = t.training.optimizer_state = accumulator_of(dtype);
      };
      const TempDir folder;
      const char* key = "tp2.sp.pp2.mbs1.dp2.z1.b4K";
      CheckpointTrial whole(key, {}, change), saved(key, folder.path(), change), same(key, {}, change);
      ASSERT_EQ(whole.go(6).error, "");
      ASSERT_EQ(saved.go(3).error, "");
      ASSERT_EQ(same.from(folder.path()).go(6).error, "");
      EXPECT_EQ(same.losses(), whole.losses(3));
      EXPECT_EQ(same.at_end, whole.at_end);
      for (const char* other : {"mbs4", "pp4.mbs2", "dp2.z3.mbs1.po.oo60", "dp2.z1.mbs2.oo50"}) {
        CheckpointTrial loaded(other, {}, change);
        ASSERT_EQ(loaded.from(folder.path()).go(4).error, "") << other;
        EXPECT_EQ(loaded.at_start, saved.at_end) << other;
        EXPECT_NEAR(loaded.steps[0].loss / whole.steps[3].loss, 1, dtype == Dtype::bf16 ? 5e-3 : 1e-10)
            << other;
      }
    }
}

// Scales are of the tensors at hand: nothing of them is kept from step to step.
TEST(CheckpointLayouts, InFp8) {
  const TempDir folder;
  const auto narrow = [](CheckpointTrial& t) {
    t.training = runnable_training(CheckpointTrial::kBatch, Dtype::fp8);
  };
  constexpr int kHalf = 3, kAll = 6;
  for (const char* key : {"mbs8", "tp2.sp.pp2.mbs1.dp2.z1.b4K"}) {
    const auto at = folder.path() / key;
    CheckpointTrial whole(key, {}, narrow), first(key, at, narrow), second(key, {}, narrow);
    ASSERT_EQ(whole.go(kAll).error, "");
    ASSERT_EQ(first.go(kHalf).error, "");
    ASSERT_EQ(second.from(at).go(kAll).error, "");
    EXPECT_EQ(second.losses(), whole.losses(kHalf)) << key;
    EXPECT_EQ(second.at_end, whole.at_end) << key;
    // Control: the same from there in bf16 is another run.
    CheckpointTrial wide(key, {}, [](CheckpointTrial& t) {
      t.training = runnable_training(CheckpointTrial::kBatch, Dtype::bf16);
    });
    ASSERT_EQ(wide.from(at).go(kAll).error, "");
    EXPECT_NE(wide.losses(), whole.losses(kHalf)) << key;
  }
}

// The copy goes on beside the next step, and here for longer: the update behind that one waits for it, and what is saved is the
// state of one step.
TEST(CheckpointLayouts, NoUpdateReachesAStateThatIsBeingCopied) {
  constexpr const char* kKey = "dp2.z1.mbs2.b4K";
  CheckpointTrial plain(kKey);
  ASSERT_EQ(plain.go(CheckpointTrial::kSteps).error, "");
  const auto longest_step = [](const CheckpointTrial& t) {  // without what it waited
    double longest = 0;
    for (const StepReport& s : t.steps) longest = std::max(longest, s.duration.v - s.save_pause.v);
    return longest;
  };
  double step_s = longest_step(plain), copy_s = 0;
  std::array<std::atomic<int>, 2> slow{};
  std::optional<TempDir> folder;
  std::optional<CheckpointTrial> trial;
  // Longer than the step beside it, on any machine: where that one was held up by what else runs here, once more.
  for (int tries = 0; tries < 4 && copy_s < 2 * step_s; ++tries) {
    copy_s = std::max(0.25, 4 * step_s);
    slow[0] = slow[1] = 0;
    trial.emplace(kKey, folder.emplace().path());
    trial->save.every = 1;
    trial->save.at = [&](SavePoint point, int rank) {
      if (point != SavePoint::copy) return;
      ++slow[static_cast<std::size_t>(rank)];
      std::this_thread::sleep_for(std::chrono::duration<double>(copy_s));
    };
    ASSERT_EQ(trial->go(CheckpointTrial::kSteps).error, "");
    EXPECT_EQ(trial->losses(), plain.losses());
    EXPECT_EQ(trial->at_end, plain.at_end);
    step_s = longest_step(*trial);
  }
  const CheckpointTrial& saved = *trial;

  ASSERT_GE(saved.saves.size(), 2U);
  EXPECT_EQ(saved.saves.back().step, CheckpointTrial::kSteps);
  double reported = 0;
  for (const StepReport& s : saved.steps) reported += s.save_pause.v;
  // A thread that got no turn beside a step leaves the copy to the rank, which waits for nothing then.
  EXPECT_GE(slow[0], 1);
  EXPECT_GT(reported, copy_s / 4 * (slow[0] - 1)) << "what the updates waited for";
  double told = 0;
  for (const SaveEvent& save : saved.saves) told += save.pause.v;
  EXPECT_GT(told, copy_s / 4 * (slow[0] - 1));
  for (const SaveEvent& save : saved.saves) {
    ASSERT_TRUE(save.committed) << save.error;
    const bool last = save.step == CheckpointTrial::kSteps;
    EXPECT_EQ(save.end_wait.has_value(), last);
    CheckpointTrial whole(kKey), loaded(kKey);
    ASSERT_EQ(whole.go(save.step).error, "");
    ASSERT_EQ(loaded.from(folder->path(), save.step).go(save.step + 1).error, "");
    EXPECT_EQ(loaded.at_start, whole.at_end) << save.step;
  }
}

// A thread that gets no turn makes nobody wait: the rank makes the copy, or what is left of it, itself.
TEST(StateSnapshot, IsCopiedByWhoeverHasATurn) {
  CheckpointTrial t("dp2.z1.mbs2.b4K");
  t.run.on_start = [&](RankTrainer& trainer, int) {
    const auto bytes = [](const StateSnapshot& staged) {
      std::vector<std::byte> all;
      for (const StateSnapshot::Piece& piece : staged.pieces())
        for (const auto& data : piece.data) all.insert(all.end(), data.begin(), data.end());
      return all;
    };
    StateSnapshot alone(trainer.state(), trainer.device()), together(trainer.state(), trainer.device());
    EXPECT_NE(bytes(alone).size(), 0U);
    const std::vector<std::byte> before = bytes(alone);
    alone.begin(trainer.state(), trainer.device(), 0);
    alone.finish(trainer.device());
    EXPECT_NE(bytes(alone), before);
    for (int again = 0; again < 20; ++again) {
      std::atomic<int> begun = 0;
      together.begin(trainer.state(), trainer.device(), 0);
      const std::jthread other([&] { together.help([&] { ++begun; }); });
      together.finish(trainer.device());
      EXPECT_EQ(bytes(together), bytes(alone));
      EXPECT_LE(begun, 1);
    }
  };
  EXPECT_EQ(t.go(1).error, "");
}

// Eight ranks, each with a checkpoint of its own, as processes would have: none reads much more than it holds.
TEST(CheckpointLayouts, EachRankReadsWhatItNeeds) {
  const TempDir folder;
  CheckpointTrial saved("tp2.sp.pp2.mbs1.dp2.z1.b4K", folder.path());
  ASSERT_EQ(saved.go(2).error, "");
  const Checkpoint whole = Checkpoint::open(folder.path());
  whole.verify();
  const std::int64_t all = whole.bytes_checked();
  EXPECT_EQ(all, 12 * parameter_counts(saved.model).total);
  for (const char* key : {"dp8.z1.mbs1", "tp4.sp.pp2.mbs2", "pp4.mbs1.dp2.z2"}) {
    CheckpointTrial loaded(key);
    loaded.run.weights = [](const ModelSlice&, std::span<double>) {};
    std::mutex mutex;
    std::int64_t sum = 0, most = 0;
    loaded.run.on_start = [&](RankTrainer& trainer, int) {
      const Checkpoint own = Checkpoint::open(folder.path());
      EXPECT_EQ(own.bytes_checked(), 0);
      restore(trainer.state(), trainer.device(), own);
      const std::lock_guard lock(mutex);
      sum += own.bytes_checked();
      most = std::max(most, own.bytes_checked());
    };
    ASSERT_EQ(loaded.go(1).error, "") << key;
    EXPECT_GE(sum, all) << key;
    EXPECT_LE(sum, 2 * all) << key << ": an extent is read whole";
    EXPECT_LE(most, all / 2) << key;
  }
}

// Under pipeline parallelism a tied head is a second copy of the embedding: both start from the same weights.
TEST(CheckpointLayouts, TiedCopiesStartAlike) {
  const auto tied = [](CheckpointTrial& t) { t.model.tied_embeddings = true; };
  CheckpointTrial one("mbs8", {}, tied), two("pp2.mbs2", {}, tied);
  ASSERT_EQ(one.go(2).error, "");
  ASSERT_EQ(two.go(2).error, "");
  EXPECT_NEAR(one.steps[0].loss / two.steps[0].loss, 1, 1e-5);
  EXPECT_NEAR(one.steps[1].loss / two.steps[1].loss, 1, 1e-5);
}

}  // namespace
}  // namespace sextant::testing
