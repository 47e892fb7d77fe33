// System: a run while its checkpoints are written, and the folder they are kept in. Expectation: a save that fails costs nothing
// but itself, what is kept is what was asked for, and nothing is taken for empty that is not.
#include <atomic>
#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tests/runtime/checkpoint/checkpoint_files.hpp"
#include "tests/runtime/checkpoint/checkpoint_trial.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;
constexpr const char* kSavedLayout = "tp2.sp.mbs1.dp2.z1.b4K";

// Steps whose gradients are not finite count on behind a checkpoint: two before it and one after are three in a row.
TEST(CheckpointClock, SkippedStepsAreRemembered) {
  static thread_local RankTrainer* current = nullptr;
  const auto spoil_from = [](CheckpointTrial& t, std::int64_t first) {
    t.run.on_start = [](RankTrainer& trainer, int) { current = &trainer; };
    t.run.max_skipped = 3;
    t.run.sequences = [source = t.run.sequences, first](std::int64_t step, int sequence,
                                                        std::span<std::int32_t> tokens) {
      current->gradient_factor = step >= first ? std::numeric_limits<double>::quiet_NaN() : 1.0;
      source(step, sequence, tokens);
    };
  };
  const TempDir folder;
  CheckpointTrial first(kSavedLayout, folder.path()), second(kSavedLayout), good(kSavedLayout);
  spoil_from(first, 3);
  spoil_from(second, 3);
  spoil_from(good, 100);
  ASSERT_EQ(first.go(5).error, "");
  const TrainerClock clock = Checkpoint::open(folder.path()).manifest().clock;
  EXPECT_EQ(clock, (TrainerClock{.step = 5, .updates = 3, .skipped = 2, .skipped_in_a_row = 2}));
  second.from(folder.path()).go(12);
  EXPECT_TRUE(tells(second.error, "step 5")) << second.error;
  EXPECT_TRUE(tells(second.error, "not finite 3 steps in a row")) << second.error;
  EXPECT_EQ(good.from(folder.path()).go(7).error, "") << "control";
  EXPECT_EQ(good.steps.size(), 2U);

  // A run that they end leaves the weights of the last good step behind, and goes on from there with better data.
  const TempDir ended;
  CheckpointTrial plain(kSavedLayout), spoiled(kSavedLayout, ended.path()), mended(kSavedLayout);
  ASSERT_EQ(plain.go(3).error, "");
  spoil_from(spoiled, 3);
  EXPECT_TRUE(tells(spoiled.go(12).error, "not finite 3 steps in a row")) << spoiled.error;
  EXPECT_EQ(Checkpoint::open(ended.path()).manifest().clock,
            (TrainerClock{.step = 6, .updates = 3, .skipped = 3, .skipped_in_a_row = 3}));
  EXPECT_TRUE(tells(spoiled.error, "and are saved")) << spoiled.error;
  EXPECT_EQ(mended.from(ended.path()).go(8).error, "");
  EXPECT_TRUE(mended.at_start == plain.at_end);
}

// Each place at which writing may fail, on one rank or the first.
TEST(CheckpointFailure, AFailingWriteCostsOneSaveAndNothingElse) {
  CheckpointTrial plain(kSavedLayout);
  ASSERT_EQ(plain.go(12).error, "");
  for (const SavePoint point :
       {SavePoint::write_file, SavePoint::file_written, SavePoint::write_manifest, SavePoint::commit}) {
    const TempDir folder;
    CheckpointTrial t(kSavedLayout, folder.path());
    t.save.every = 4;
    std::atomic<int> failures = 0;
    t.save.at = [&](SavePoint p, int rank) {
      if (p == point && (rank == 2 || p >= SavePoint::write_manifest) && failures++ == 0)
        throw BackendError("No space left on device");
    };
    t.run.on_step = [&](const StepReport& r) {  // steps long enough for a save to fail before the last one
      t.steps.push_back(r);
      if (r.step >= 4) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    };
    ASSERT_EQ(t.go(12).error, "");
    EXPECT_EQ(t.losses(), plain.losses());
    ASSERT_GE(t.saves.size(), 2U);
    EXPECT_EQ(t.saves.front().step, 4);
    EXPECT_NE(t.saves.front().error, "");
    ASSERT_EQ(t.problems.size(), 1U) << "one line, whoever has met it";
    EXPECT_TRUE(tells(t.problems[0], "step 4 could not be written: No space left")) << t.problems[0];
    EXPECT_TRUE(tells(t.problems[0], "training continues, and the first that can be saved next is step "))
        << t.problems[0];
    EXPECT_EQ(steps_in(folder.path()).back(), 12);
    EXPECT_EQ(names_in(folder.path() / "checkpoints").count("step-00000004"), 0U);
    for (const auto& name : names_in(folder.path() / "checkpoints")) EXPECT_NE(name[0], '.') << name;
    EXPECT_EQ(fault(folder.path()), "");
  }
}

// Steps are faster than the disk: by the time a failure is known another save is due, and no longer of this step.
TEST(CheckpointFailure, TheStepThatIsSavedNextIsTold) {
  const TempDir folder;
  CheckpointTrial t(kSavedLayout, folder.path());
  t.save.every = 4;
  std::atomic<int> failures = 0;
  std::atomic<std::int64_t> now = 0;
  t.run.on_step = [&](const StepReport& r) { now = r.step + 1; };
  t.save.at = [&](SavePoint p, int) {
    if (p != SavePoint::commit || failures++ > 0) return;
    while (now < 9) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    throw BackendError("No space left on device");
  };
  std::int64_t known_behind = 0;  // the first rank has met it, and is in the same thread as on_step
  t.save.on_problem = [&](const std::string& what) {
    known_behind = now + 1;
    t.problems.push_back(what);
  };
  ASSERT_EQ(t.go(40).error, "");
  ASSERT_EQ(t.problems.size(), 1U);
  const std::string words = "saved next is step ";
  const auto at = t.problems[0].find(words);
  ASSERT_NE(at, std::string::npos) << t.problems[0];
  const std::int64_t told = std::stoll(t.problems[0].substr(at + words.size()));
  EXPECT_EQ(told, known_behind + 1);
  ASSERT_GE(t.saves.size(), 2U);
  EXPECT_LE(told, t.saves[1].step);
  EXPECT_LT(t.saves[1].step, 40) << "control: not only the end was saved";
}

TEST(CheckpointFailure, ALastSaveThatFailsIsToldAndTheOneBeforeStands) {
  const TempDir folder;
  CheckpointTrial t(kSavedLayout, folder.path());
  t.save.every = 2;
  t.save.at = [&](SavePoint p, int) {
    if (p == SavePoint::commit && !steps_in(folder.path()).empty()) throw BackendError("Input/output error");
  };
  t.go(8);
  EXPECT_FALSE(t.config_error);
  EXPECT_TRUE(tells(t.error, "step 8")) << t.error;
  EXPECT_TRUE(tells(t.error, "Input/output error")) << t.error;
  ASSERT_EQ(steps_in(folder.path()).size(), 1U);
  EXPECT_TRUE(tells(t.error, "--resume continues from step " + std::to_string(steps_in(folder.path())[0])))
      << t.error;
  EXPECT_EQ(fault(folder.path()), "");
}

// A disk slower than training: saves that are due wait for the one under way, and training waits for none.
TEST(CheckpointFailure, ASlowDiskPutsSavesOff) {
  const TempDir folder;
  CheckpointTrial t(kSavedLayout, folder.path());
  t.save.every = 1;
  std::atomic<int> written = 0;
  std::atomic<std::int64_t> now = 0;
  t.run.on_step = [&](const StepReport& r) { now = r.step; };
  t.save.at = [&](SavePoint p, int) {
    if (p != SavePoint::write_file || written++ >= 4) return;
    while (now < 7) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // hangs if training waits
  };
  ASSERT_EQ(t.go(12).error, "");
  const auto steps = steps_in(folder.path());
  ASSERT_GE(steps.size(), 2U);
  EXPECT_EQ(steps[0], 1);
  EXPECT_GT(steps[1], 7);
  EXPECT_EQ(steps.back(), 12);
}

TEST(CheckpointFolder, KeepsTheLastAndMilestones) {
  const TempDir folder;
  for (int step = 3; step <= 30; step += 3) fs::create_directories(checkpoint_path(folder.path(), step));
  drop_old_checkpoints(folder.path(), {.last = 2, .every = 10}, 30);
  EXPECT_EQ(steps_in(folder.path()), (std::vector<std::int64_t>{12, 21, 27, 30}));
  // Another run's later ones do not count, and stay.
  drop_old_checkpoints(folder.path(), {.last = 1, .every = 0}, 21);
  EXPECT_EQ(steps_in(folder.path()), (std::vector<std::int64_t>{21, 27, 30}));
  drop_old_checkpoints(folder.path(), {.last = 1, .every = 0}, 30);
  EXPECT_EQ(steps_in(folder.path()), (std::vector<std::int64_t>{30}));
  const std::set<std::string> not_ours = {".bashrc", ".step-33.unfinished", ".unfinished", ".step-00000033"};
  for (const std::string& name : not_ours) fs::create_directories(folder.path() / "checkpoints" / name);
  fs::create_directories(unfinished_path(folder.path(), 33));
  fs::create_directories(folder.path() / "checkpoints" / ".step-00000027.old");
  clear_leftovers(folder.path());
  std::set<std::string> left = not_ours;
  left.insert("step-00000030");
  EXPECT_EQ(names_in(folder.path() / "checkpoints"), left);
  for (const std::string& name : not_ours) fs::remove_all(folder.path() / "checkpoints" / name);
  fs::create_directories(checkpoint_path(folder.path(), 12));
  set_aside_after(folder.path(), 12);
  fs::create_directories(checkpoint_path(folder.path(), 30));
  set_aside_after(folder.path(), 12);
  EXPECT_EQ(names_in(folder.path() / "checkpoints"),
            (std::set<std::string>{"step-00000012", "aside-step-00000030", "aside-step-00000030-2"}));
}

// "No checkpoint" would begin the run anew and write over what is there.
TEST(CheckpointFolder, OneThatCannotBeListedIsNotEmpty) {
  const TempDir folder;
  EXPECT_TRUE(committed_checkpoints(folder.path()).empty());
  const fs::path checkpoints = folder.path() / "checkpoints";
  fs::create_directory_symlink(folder.path() / "not-mounted", checkpoints);
  EXPECT_THROW(committed_checkpoints(folder.path()), ConfigError);
  fs::create_directories(folder.path() / "not-mounted" / "step-00000007");
  EXPECT_EQ(steps_in(folder.path()), (std::vector<std::int64_t>{7}));
  fs::remove(checkpoints);
  folder.write("checkpoints", "a file");
  EXPECT_THROW(committed_checkpoints(folder.path()), ConfigError);
}

TEST(CheckpointFolder, OneRunAtATime) {
  const TempDir folder;
  {
    const RunLock held(folder.path());
    EXPECT_THROW(RunLock(folder.path()), ConfigError);
  }
  EXPECT_NO_THROW(RunLock(folder.path())) << "let go of";
}

}  // namespace
}  // namespace sextant::testing
