// System: what happens to a checkpoint on the disk. Expectation: every flipped byte is found and named, and every foreign or
// short file is refused with what was expected.
#include <fstream>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/checkpoint/file_header.hpp"
#include "tests/runtime/checkpoint/checkpoint_files.hpp"
#include "tests/runtime/checkpoint/checkpoint_trial.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;
constexpr const char* kLayout = "tp2.sp.mbs1.dp2.z1.b4K";

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

// Whoever reads weights has no use for a command that trains.
TEST_F(Damage, TheOneBeforeIsOfferedInTheWordsOfItsUse) {
  const fs::path file = newest_ / "rank-00001.safetensors", manifest = newest_ / kManifestName;
  for (const fs::path& damaged : {file, manifest}) {
    flip(damaged, static_cast<std::int64_t>(fs::file_size(damaged)) - 3, 0x10);
    const std::string read = fault(run(), CheckpointUse::read_weights), on = fault(run());
    EXPECT_TRUE(tells(read, "the one of step 2 before it has all its files: --step 2")) << read;
    EXPECT_FALSE(tells(read, "--resume")) << read;
    EXPECT_TRUE(tells(on, "--resume --resume-step 2")) << on;
    for (const std::string& text : {read, on})
      EXPECT_EQ(text.find("damaged"), text.rfind("damaged")) << "told once: " << text;
    flip(damaged, static_cast<std::int64_t>(fs::file_size(damaged)) - 3, 0x10);
  }
  EXPECT_EQ(fault(run(), CheckpointUse::read_weights), "") << "control";
}

TEST_F(Damage, APipeInPlaceOfAFile) {
  const fs::path file = newest_ / "rank-00001.safetensors";
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_TRUE(tells(fault(run()), file.string() + ": found no regular file, expected the file that the "
                                                  "manifest names"))
      << fault(run());
  EXPECT_TRUE(tells(fault(run()), "--resume-step 2")) << fault(run());
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
  EXPECT_TRUE(tells(fault(run()), "as its folder is named")) << fault(run());
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
  model.hidden *= 2;
  model.n_layers *= 2;
  model.head_dim *= 2;
  model.vocab_size *= 2;
  model.rope_theta *= 2;
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

// A header that could not be read was once digested as an empty one, and the checkpoint committed with that.
TEST_F(Damage, AHeaderThatCannotBeReadIsNoEmptyOne) {
  const fs::path file = newest_ / "rank-00000.safetensors";
  EXPECT_GT(file_header(file).size(), 8U) << "control";
  fs::resize_file(file, 5);
  EXPECT_EQ(file_header(file), "") << "damaged, and readable";
  fs::remove(file);
  EXPECT_EQ(file_header(file), "") << "dropped";
  fs::create_symlink(file.filename(), file);  // leads to itself
  try {
    (void)file_header(file);
    ADD_FAILURE() << "expected a BackendError";
  } catch (const BackendError& e) {
    EXPECT_TRUE(tells(e.what(), "rank-00000.safetensors: cannot be read: Too many levels")) << e.what();
  }
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

}  // namespace
}  // namespace sextant::testing
