// System: what happens to a checkpoint on the disk and while it is written. Expectation: every flipped byte is found and named,
// every foreign or short file is refused with what was expected, and a save that fails costs nothing but itself.
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/file_io.hpp"
#include "core/safetensors.hpp"
#include "tests/runtime/checkpoint_trial.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;
constexpr const char* kLayout = "tp2.sp.mbs1.dp2.z1.b4K";

bool tells(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

std::vector<std::int64_t> steps_in(const fs::path& run) {
  std::vector<std::int64_t> steps;
  for (const auto& c : committed_checkpoints(run)) steps.push_back(c.step);
  return steps;
}

// What opening and reading all of the newest checkpoint says; empty when nothing is wrong.
std::string fault(const fs::path& run) {
  try {
    Checkpoint::open(run).verify();
    return "";
  } catch (const ConfigError& e) {
    return e.what();
  }
}

void flip(const fs::path& file, std::int64_t at, unsigned char bits) {
  std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
  f.seekg(at);
  const int byte = f.get();
  f.seekp(at);
  f.put(static_cast<char>(byte ^ bits));
}

// A run with checkpoints of step 2 and 4.
class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    CheckpointTrial first(kLayout, folder_.path()), second(kLayout, folder_.path());
    ASSERT_EQ(first.go(2).error, "");
    ASSERT_EQ(second.from(folder_.path()).go(4).error, "");
    ASSERT_EQ(steps_in(run()), (std::vector<std::int64_t>{2, 4}));
    ASSERT_EQ(fault(run()), "");
    newest_ = checkpoint_path(run(), 4);
  }
  const fs::path& run() const { return folder_.path(); }

  fs::path newest_;

 private:
  TempDir folder_;
};

TEST_F(Damage, AFlippedByteAnywhereIsFoundAndNamed) {
  std::mt19937 random(3);
  int in_tensors = 0, in_headers = 0;
  for (const auto& entry : fs::directory_iterator(newest_)) {
    const fs::path file = entry.path();
    const auto size = static_cast<std::int64_t>(fs::file_size(file));
    std::set<std::int64_t> places = {0, 7, 8, 100, size - 1};
    for (int i = 0; i < 60; ++i)
      places.insert(std::uniform_int_distribution<std::int64_t>(0, size - 1)(random));
    for (const std::int64_t at : places) {
      const auto bits = static_cast<unsigned char>(1U << random() % 8U);
      flip(file, at, bits);
      const std::string what = fault(run());
      flip(file, at, bits);
      ASSERT_TRUE(tells(what, file.string())) << "byte " << at << ": " << what;
      EXPECT_TRUE(tells(what, "--resume-step 2")) << "the one before is offered: " << what;
      in_tensors += tells(what, "model.") && tells(what, ":");
      in_headers += tells(what, "header");
    }
  }
  EXPECT_EQ(fault(run()), "") << "control: flipped back";
  EXPECT_GT(in_tensors, 50);
  EXPECT_GT(in_headers, 10);
}

TEST_F(Damage, AResumedRunNamesTensorAndExtent) {
  const fs::path file = newest_ / "rank-00001.safetensors";
  flip(file, static_cast<std::int64_t>(fs::file_size(file)) - 3, 0x10);
  CheckpointTrial t("pp2.mbs2");
  t.from(run()).go(6);
  EXPECT_TRUE(t.config_error);
  EXPECT_TRUE(t.steps.empty());
  EXPECT_TRUE(tells(t.error, file.string())) << t.error;
  EXPECT_TRUE(tells(t.error, "exp_avg_sq/model.")) << t.error;
  EXPECT_TRUE(tells(t.error, "[")) << t.error;
  EXPECT_TRUE(tells(t.error, "expected digest")) << t.error;
  CheckpointTrial before("pp2.mbs2");
  EXPECT_EQ(before.from(run(), 2).go(3).error, "") << "and the one before can be used";
}

TEST_F(Damage, OnlyACompleteOneIsOffered) {
  const fs::path file = newest_ / "rank-00001.safetensors",
                 other = checkpoint_path(run(), 2) / "rank-00000.safetensors";
  flip(file, static_cast<std::int64_t>(fs::file_size(file)) - 3, 0x10);
  EXPECT_TRUE(tells(fault(run()), "sextant run -o " + run().string() + " --resume --resume-step 2"))
      << fault(run());
  fs::resize_file(other, fs::file_size(other) - 1);
  EXPECT_TRUE(tells(fault(run()), "there is no complete one before it")) << fault(run());
  EXPECT_TRUE(tells(fault(run()), file.string())) << "of the one that was asked for: " << fault(run());
}

TEST_F(Damage, TruncatedMissingAndForeignFiles) {
  const fs::path file = newest_ / "rank-00002.safetensors", kept = newest_ / "kept";
  const auto size = fs::file_size(file);
  fs::copy(file, kept);
  fs::resize_file(file, size - 1);
  EXPECT_TRUE(tells(fault(run()), file.string()));
  EXPECT_TRUE(tells(fault(run()), "expected " + std::to_string(size) + " bytes")) << fault(run());
  fs::remove(file);
  EXPECT_TRUE(tells(fault(run()), file.string())) << fault(run());
  EXPECT_TRUE(tells(fault(run()), "that the manifest names")) << fault(run());
  fs::copy(checkpoint_path(run(), 2) / "rank-00002.safetensors", file);  // well-formed, of another step
  EXPECT_TRUE(tells(fault(run()), file.string())) << fault(run());
  fs::copy(kept, file, fs::copy_options::overwrite_existing);
  EXPECT_EQ(fault(run()), "") << "control";
  fs::rename(newest_ / kManifestName, kept);
  fs::copy(kept, newest_ / kManifestName);
  fs::resize_file(newest_ / kManifestName, 1'700'000'000);  // with a hole
  EXPECT_TRUE(tells(fault(run()), "is 1621.2 MiB, expected at most 1536.0 MiB; it was not read"))
      << fault(run());
  EXPECT_TRUE(tells(fault(run()), "--resume-step 2")) << fault(run());
  fs::remove(newest_ / kManifestName);
  EXPECT_TRUE(tells(fault(run()), "manifest.json")) << fault(run());
  fs::rename(newest_, checkpoint_path(run(), 5));
  fs::copy(checkpoint_path(run(), 2) / kManifestName, checkpoint_path(run(), 5) / kManifestName);
  EXPECT_TRUE(tells(fault(run()), "as its folder says")) << fault(run());
}

// A run that goes on drops its older checkpoints, also those that somebody reads.
TEST_F(Damage, DroppedWhileItIsReadIsNoDamage) {
  const Checkpoint read = Checkpoint::open(run());
  fs::remove_all(newest_);
  try {
    read.verify();
    ADD_FAILURE() << "it is gone";
  } catch (const ConfigError& e) {
    EXPECT_TRUE(tells(e.what(), "dropped while it was read")) << e.what();
    EXPECT_FALSE(tells(e.what(), "damaged")) << e.what();
  }
  std::ofstream(newest_) << "no folder";
  EXPECT_TRUE(tells(fault(run()), "--resume-step 2")) << fault(run());
}

// It may be whole, and cannot be looked at: neither dropped nor to be replaced by an older one.
TEST_F(Damage, StorageThatGoesAwayWhileItIsReadIsNoDrop) {
  const Checkpoint read = Checkpoint::open(run());
  for (const ModelSlice& t : model_tensors(read.manifest().plan.model)) {
    std::vector<double> values(static_cast<std::size_t>(t.rows * t.cols));
    read.weights()(t, values);
  }
  const fs::path file = newest_ / "rank-00001.safetensors", folder = run() / "checkpoints";
  flip(file, static_cast<std::int64_t>(fs::file_size(file)) - 3, 0x10);
  fs::rename(folder, run() / "storage");
  fs::create_symlink("checkpoints", folder);
  try {
    read.verify();
    ADD_FAILURE() << "a byte was flipped";
  } catch (const ConfigError& e) {
    EXPECT_TRUE(tells(e.what(), "is its storage mounted")) << e.what();
    EXPECT_FALSE(tells(e.what(), "dropped")) << e.what();
    EXPECT_FALSE(tells(e.what(), "--resume-step")) << e.what();
  }
}

TEST_F(Damage, AManifestThatLies) {
  const fs::path file = newest_ / kManifestName;
  const std::string text = read_text_file(file);
  const Manifest good = parse_manifest(text, "m");
  EXPECT_EQ(manifest_text(good), text) << "round trip";
  const auto lies = [&](const std::function<void(Manifest&)>& change, const std::string& words) {
    Manifest bad = good;
    change(bad);
    write_file_atomic(file, manifest_text(bad));  // with a digest that fits
    const std::string what = fault(run());
    EXPECT_TRUE(tells(what, words)) << "wanted: " << words << "\ngot: " << what;
    EXPECT_TRUE(tells(what, "--resume-step 2")) << what;
  };
  auto extents_of_first = [](Manifest& m) -> std::vector<StoredExtent>& { return m.files[0].extents; };
  lies([&](Manifest& m) { extents_of_first(m).pop_back(); }, "are not there");
  lies([&](Manifest& m) { extents_of_first(m).push_back(extents_of_first(m)[0]); }, "overlap");
  lies([&](Manifest& m) { extents_of_first(m)[0].extent.row += 100000; }, "outside");
  lies([&](Manifest& m) { extents_of_first(m)[0].tensor = "model.layers.77.mlp.up_proj.weight"; },
       "model.layers.77");
  lies([&](Manifest& m) { extents_of_first(m)[0].digests[1][3] ^= 1; }, "digest");
  lies([&](Manifest& m) { extents_of_first(m)[0].digests[1] = "?"; }, "32 hexadecimal digits");
  lies([&](Manifest& m) { m.files[0].name = "../../other"; }, "files[0].name");
  lies([&](Manifest& m) { m.files[1].name = m.files[0].name; }, "each file once");
  lies([&](Manifest& m) { m.files.pop_back(); }, "are not there");
  lies([&](Manifest& m) { m.files[0].bytes += 8; }, "size");
  lies([&](Manifest& m) { m.files[0].header[0] ^= 1; }, "header");
  lies([&](Manifest& m) { m.dtype = Dtype::fp64; }, "dtype");
  lies([&](Manifest& m) { m.dtype = Dtype::bf16; }, "fp32 or fp64");
  lies([&](Manifest& m) { m.clock.updates += 1; }, "updates");
  lies([&](Manifest& m) { m.plan.model.n_layers += 1; }, "model.layers.4");
  lies([&](Manifest& m) { m.plan.model.vocab_size += 1; }, "model.embed_tokens.weight");
  write_file_atomic(file, text);
  EXPECT_EQ(fault(run()), "") << "control";
}

TEST_F(Damage, CheckpointsOfAnotherModelAndFormat) {
  const Checkpoint c = Checkpoint::open(run());
  ModelSpec model = c.manifest().plan.model;
  EXPECT_NO_THROW(c.require_model(model, "plan.json"));
  model.name = "another name";
  EXPECT_NO_THROW(c.require_model(model, "plan.json"));
  const auto told = [&] {
    try {
      c.require_model(model, "plan.json");
      return std::vector<Problem>{};
    } catch (const ConfigError& e) {
      return e.problems();
    }
  };
  model.ffn_hidden *= 2;
  try {
    c.require_model(model, "plan.json");
    ADD_FAILURE() << "another model was accepted";
  } catch (const ConfigError& e) {
    EXPECT_TRUE(tells(e.what(), "plan.json")) << e.what();
    EXPECT_TRUE(tells(e.what(), "model.ffn_hidden")) << e.what();
    EXPECT_TRUE(tells(e.what(), "expected 96")) << e.what();
    EXPECT_TRUE(tells(e.what(), "another model")) << e.what();
  }
  model.hidden *= 2, model.n_layers *= 2, model.head_dim *= 2, model.vocab_size *= 2, model.rope_theta *= 2;
  ASSERT_EQ(told().size(), 1U) << "one message, whatever differs";
  EXPECT_EQ(told()[0].key, "model.hidden");
  EXPECT_TRUE(tells(told()[0].hint, "n_layers 8 where it has 4, vocab_size ")) << told()[0].hint;
  EXPECT_TRUE(tells(told()[0].hint, ", and 2 more fields")) << told()[0].hint;
  CheckpointTrial wide(kLayout, {}, [](CheckpointTrial& t) {
    t.training.compute = t.training.parameter = t.training.gradient = t.training.reduction =
        t.training.optimizer_state = Dtype::fp64;
  });
  wide.from(run()).go(6);
  EXPECT_TRUE(wide.config_error);
  EXPECT_TRUE(tells(wide.error, "found fp32, expected fp64")) << wide.error;
}

TEST_F(Damage, AskingForWhatIsNotThere) {
  const auto refused = [&](const fs::path& folder, std::optional<std::int64_t> step) -> std::string {
    try {
      Checkpoint::open(folder, step);
      return "";
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  EXPECT_TRUE(tells(refused(run(), 3), "one of 2, 4")) << refused(run(), 3);
  EXPECT_TRUE(tells(refused(run() / "nowhere", {}), "no such folder"));
  EXPECT_FALSE(Checkpoint::open_newest(run() / "nowhere"));
  fs::create_directories(run() / "checkpoints" / ".step-00000009.unfinished");
  fs::create_directories(run() / "checkpoints" / "step-9");
  EXPECT_EQ(steps_in(run()), (std::vector<std::int64_t>{2, 4})) << "neither is one";
}

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
  CheckpointTrial first(kLayout, folder.path()), second(kLayout), good(kLayout);
  spoil_from(first, 3), spoil_from(second, 3), spoil_from(good, 100);
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
  CheckpointTrial plain(kLayout), spoiled(kLayout, ended.path()), mended(kLayout);
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
  CheckpointTrial plain(kLayout);
  ASSERT_EQ(plain.go(12).error, "");
  for (const SavePoint point :
       {SavePoint::write_file, SavePoint::file_written, SavePoint::write_manifest, SavePoint::commit}) {
    const TempDir folder;
    CheckpointTrial t(kLayout, folder.path());
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
    EXPECT_TRUE(tells(t.problems[0], "training goes on, and the first that can be saved next is step "))
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
  CheckpointTrial t(kLayout, folder.path());
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
  CheckpointTrial t(kLayout, folder.path());
  t.save.every = 2;
  t.save.at = [&](SavePoint p, int) {
    if (p == SavePoint::commit && !steps_in(folder.path()).empty()) throw BackendError("Input/output error");
  };
  t.go(8);
  EXPECT_FALSE(t.config_error);
  EXPECT_TRUE(tells(t.error, "step 8")) << t.error;
  EXPECT_TRUE(tells(t.error, "Input/output error")) << t.error;
  ASSERT_EQ(steps_in(folder.path()).size(), 1U);
  EXPECT_TRUE(tells(t.error, "--resume goes on from step " + std::to_string(steps_in(folder.path())[0])))
      << t.error;
  EXPECT_EQ(fault(folder.path()), "");
}

// A disk slower than training: saves that are due wait for the one under way, and training waits for none.
TEST(CheckpointFailure, ASlowDiskPutsSavesOff) {
  const TempDir folder;
  CheckpointTrial t(kLayout, folder.path());
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
  fs::create_directories(unfinished_path(folder.path(), 33));
  clear_leftovers(folder.path());
  EXPECT_EQ(names_in(folder.path() / "checkpoints"), (std::set<std::string>{"step-00000030"}));
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
