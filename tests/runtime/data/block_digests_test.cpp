// System: a data set that is too large to be verified on opening (here: any). Expectation: what is read is compared with the
// digests of its blocks first, so nothing foreign or damaged is ever handed out; what is not read is not looked at.
#include "runtime/data/block_digests.hpp"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "core/base/json_digest.hpp"
#include "core/base/json_io.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/prepare.hpp"
#include "runtime/data/sequences.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kAsRead = 0;  // verified on opening
constexpr std::int64_t kInBlock = kDigestBlock / 2;

class BlocksOfData : public testing::Test {
 protected:
  BlocksOfData() { make("data", 1); }
  // Lines of digits, every line a document: more than four blocks of tokens, and three of their ends.
  void make(const std::string& name, int first) {
    std::string text;
    for (int i = first; text.size() < 450'000; ++i) text += std::to_string(i % 997) + "\n";
    PrepareOptions o;
    o.out = folder_.path() / name;
    o.unit = DocumentUnit::line;
    o.validation_fraction = 0;
    prepare_data(find_texts({folder_.write(name + ".txt", text).string()}), byte_tokenizer(), o);
  }
  fs::path tokens() const { return folder_.path() / "data/train-00000.tokens"; }
  fs::path documents() const { return folder_.path() / "data/train-00000.documents"; }
  fs::path blocks() const { return folder_.path() / "data/train-00000.blocks"; }
  DataSet open() const { return DataSet(folder_.path() / "data", kAsRead); }
  static void flip(const fs::path& file, std::int64_t at) {
    std::string bytes = read_text_file(file);
    bytes.at(static_cast<std::size_t>(at)) ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }
  // The words of a refusal; "accepted" when there is none.
  template <class Use>
  static std::string refusal(const Use& use) {
    try {
      use();
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "accepted";
  }
  static std::string reading(const DataSet& data, std::int64_t first, std::size_t n = 100) {
    return refusal([&] {
      std::vector<std::int32_t> ids(n);
      data.row(DataSplit::train).read(first, ids);
    });
  }
  static void says(const std::string& message, const std::vector<std::string>& words) {
    for (const auto& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  }
  // As an earlier version has written it.
  void without_blocks() const {
    nlohmann::json j = nlohmann::json::parse(read_text_file(folder_.path() / "data/index.json"));
    j["schema"] = "sextant.data/2";
    j["train"][0].erase("blocks_digest");
    j["index_digest"] = digest_without(j, {"index_digest"});
    write_file_atomic(folder_.path() / "data/index.json", j.dump());
    fs::remove(blocks());
  }
  TempDir folder_;
};

TEST_F(BlocksOfData, AFlippedByteIsFoundWhenItsBlockIsRead) {
  flip(tokens(), 2 * kInBlock * 2 + 77);
  const DataSet data = open();
  EXPECT_TRUE(data.verified());
  EXPECT_EQ(reading(data, 0), "accepted");
  EXPECT_EQ(reading(data, 2 * kInBlock - 100), "accepted") << "up to the block";
  EXPECT_EQ(reading(data, 3 * kInBlock), "accepted") << "and behind it";
  for (const std::int64_t first : {2 * kInBlock - 99, 2 * kInBlock, 3 * kInBlock - 1, std::int64_t{0}})
    says(reading(data, first, first == 0 ? 3 * kInBlock : 100),
         {"train-00000.tokens: bytes 524288 to 786432", "digest ", "as line 3 of train-00000.blocks states",
          "put the file of this set back, or make the set again: sextant data"});
  says(refusal([&] { DataSet(folder_.path() / "data"); }), {"train-00000.tokens", "as the index states"});
}

TEST_F(BlocksOfData, AShardOfAnotherSetIsFoundWithItsFirstTokens) {
  make("other", 5);
  const auto size = fs::file_size(tokens());
  fs::copy_file(folder_.path() / "other/train-00000.tokens", tokens(), fs::copy_options::overwrite_existing);
  fs::resize_file(tokens(), size);
  says(reading(open(), 1000), {"train-00000.tokens: bytes 0 to 262144", "is of another set"});
  fs::copy_file(folder_.path() / "other/train-00000.blocks", blocks(), fs::copy_options::overwrite_existing);
  says(reading(open(), 1000), {"train-00000.blocks", "as the index states"});
  without_blocks();
  EXPECT_EQ(reading(open(), 1000), "accepted") << "control: without digests of blocks nobody can tell";
  EXPECT_FALSE(open().verified());
}

TEST_F(BlocksOfData, EndsOfDocumentsAreComparedToo) {
  const auto all = [](const DataSet& data) {
    return refusal([&] { Windows(data.row(DataSplit::train), 64, Packing::within, false); });
  };
  const auto begun = [](const DataSet& data, std::int64_t first) {
    return refusal(
        [&] { data.row(DataSplit::train).documents_begun_in(first, first + 64, [](std::int64_t) {}); });
  };
  EXPECT_EQ(all(open()), "accepted");
  EXPECT_EQ(begun(open(), 1000), "accepted");
  // One token later: still ascending, and inside of the shard.
  flip(documents(), 64 * 8);
  says(all(open()), {"train-00000.documents: bytes 0 to 262144", ".blocks states"});
  says(begun(open(), 1000), {"train-00000.documents: bytes 0 to 262144", ".blocks states"});
  without_blocks();
  EXPECT_EQ(all(open()), "accepted") << "control";
}

TEST_F(BlocksOfData, DigestsThatAreMissingOrDamagedAreNamed) {
  flip(blocks(), 40);
  EXPECT_EQ(refusal([&] { open(); }), "accepted") << "they are read with the first block";
  says(reading(open(), 0), {"train-00000.blocks", "as the index states", "put the file of this set back"});
  says(refusal([&] { DataSet(folder_.path() / "data"); }), {"train-00000.blocks"});
  says(refusal([&] { open().row(DataSplit::train).verify(); }), {"train-00000.blocks"});
  fs::remove(blocks());
  says(reading(open(), 0), {"train-00000.blocks", "no such file"});
}

TEST_F(BlocksOfData, ASetOfAnEarlierVersionIsVerifiedWholeWhenItIsSmall) {
  without_blocks();
  EXPECT_TRUE(DataSet(folder_.path() / "data").verified());
  EXPECT_FALSE(open().verified());
  flip(tokens(), 77);
  says(refusal([&] { DataSet(folder_.path() / "data"); }), {"train-00000.tokens"});
}

TEST_F(BlocksOfData, LinesAreThoseOfTheFilesHoweverTheirBytesCame) {
  const std::string bytes = read_text_file(tokens());
  BlockDigests by_pieces;
  for (std::size_t at = 0, n = 1; at < bytes.size(); at += n, n = n * 7 % 100'003)
    by_pieces.add(std::string_view(bytes).substr(at, n));
  const std::string lines = read_text_file(blocks());
  EXPECT_EQ(lines.substr(0, by_pieces.text().size()), by_pieces.text());
  EXPECT_EQ(lines.substr(0, 32), digest(std::string_view(bytes).substr(0, kDigestBlock)));
}

}  // namespace
}  // namespace sextant
