// System: a run on a data set of which one block is damaged, in the middle of a file. Expectation: no rank trains on it; the
// run ends in the step that needs it, on all ranks, says what is wrong, and has saved what was done; with the file put back
// it goes on to the same bits as a run that never met the damage.
#include <fstream>

#include <gtest/gtest.h>

#include "core/base/file_io.hpp"
#include "runtime/data/prepare.hpp"
#include "runtime/data/sequences.hpp"
#include "tests/runtime/checkpoint/checkpoint_trial.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::testing {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kDamagedAt = (2U << 18) + 1000;  // bytes: the third block

class MissingTokens : public ::testing::TestWithParam<const char*> {
 protected:
  MissingTokens() {
    std::string text;
    for (int i = 1; text.size() < 700'000; ++i) text += std::to_string(i % 997) + "\n";
    PrepareOptions o;
    o.out = data_;
    o.unit = DocumentUnit::line;
    o.validation_fraction = 0.1;
    prepare_data(find_texts({folder_.write("text", text).string()}), byte_tokenizer(), o);
  }
  void flip() const {
    const fs::path file = data_ / "train-00000.tokens";
    std::string bytes = read_text_file(file);
    bytes.at(kDamagedAt) ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }
  std::shared_ptr<const DataSet> open() const { return std::make_shared<const DataSet>(data_, 0); }
  static TokenSource source(const std::shared_ptr<const DataSet>& data, std::uint64_t seed) {
    return training_sequences({{data, 1}}, {.seq_len = runnable_training(CheckpointTrial::kBatch).seq_len,
                                            .global_batch = CheckpointTrial::kBatch,
                                            .seed = seed});
  }
  // The first step for which a sequence cannot be read.
  static std::int64_t first_without(const TokenSource& tokens) {
    std::vector<std::int32_t> ids(
        static_cast<std::size_t>(runnable_training(CheckpointTrial::kBatch).seq_len) + 1);
    for (std::int64_t step = 0;; ++step) try {
        for (int s = 0; s < CheckpointTrial::kBatch; ++s) tokens(step, s, ids);
      } catch (const ConfigError&) {
        return step;
      }
  }
  TempDir folder_;
  fs::path data_ = folder_.path() / "data";
};

TEST_P(MissingTokens, EndARunThatIsSavedAndGoesOnWhenTheyAreBack) {
  flip();
  std::uint64_t seed = 1;
  while (first_without(source(open(), seed)) != 3) ++seed;
  const fs::path run = folder_.path() / "run";
  CheckpointTrial damaged(GetParam(), run);
  damaged.run.sequences = source(open(), seed);
  damaged.go(6);
  EXPECT_TRUE(damaged.config_error);
  for (const char* words : {"train-00000.tokens: bytes 524288 to 786432", "put the file of this set back",
                            "the run is saved: --resume continues from step 3"})
    EXPECT_NE(damaged.error.find(words), std::string::npos) << words << " in: " << damaged.error;
  EXPECT_EQ(damaged.steps.size(), 3U);
  ASSERT_EQ(damaged.saves.size(), 1U);
  EXPECT_TRUE(damaged.saves[0].committed);
  EXPECT_EQ(damaged.saves[0].step, 3);

  CheckpointTrial again(GetParam(), run);
  again.run.sequences = source(open(), seed);
  again.from(run).go(6);
  EXPECT_TRUE(again.config_error) << "control: it is still damaged";
  EXPECT_TRUE(again.steps.empty());

  flip();
  CheckpointTrial on(GetParam(), run), whole(GetParam());
  on.run.sequences = whole.run.sequences = source(open(), seed);
  on.from(run).go(6);
  whole.go(6);
  EXPECT_EQ(on.error, "");
  EXPECT_EQ(on.losses(), whole.losses(3));
  EXPECT_EQ(on.at_end, whole.at_end);
}

TEST_P(MissingTokens, OfHeldOutTextEndARunLikewise) {
  CheckpointTrial t(GetParam(), folder_.path() / "run");
  t.run.sequences = source(open(), 1);
  t.run.evaluate_every = 2;
  t.run.evaluations.push_back({"held out",
                               [](std::int64_t, int sequence, std::span<std::int32_t>) {
                                 if (sequence == 5)
                                   throw ConfigError(Problem{"held.tokens", "", "no", "yes", ""});
                               },
                               1});
  t.go(4);
  EXPECT_TRUE(t.config_error);
  EXPECT_NE(t.error.find("held.tokens"), std::string::npos) << t.error;
  EXPECT_NE(t.error.find("the run is saved: --resume continues from step 2"), std::string::npos) << t.error;
  ASSERT_EQ(t.saves.size(), 1U);
  EXPECT_EQ(t.saves[0].step, 2);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MissingTokens,
                         ::testing::Values("mbs2", "dp2.z1.mbs1", "tp2.sp.pp2.mbs1.dp2.z3"),
                         [](const auto& layout) {
                           std::string name = layout.param;
                           std::erase(name, '.');
                           return name;
                         });

}  // namespace
}  // namespace sextant::testing
