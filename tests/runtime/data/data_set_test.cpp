// From texts to a data set: what is written is what was read, in any pieces.
#include "runtime/data/data_set.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/prepare.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"
#include "tests/runtime/data/data_sets.hpp"

namespace sextant {
namespace {

using namespace data_sets;

TEST_F(DataSets, DocumentsOfEveryUnit) {
  const std::string text = "one\ntwo\n\n \n\nthree\r\n\r\nfour";
  const std::string file = write("a.txt", text);
  const auto read = [&](DocumentUnit unit, const std::string& out) {
    PrepareOptions o = all_train();
    o.unit = unit;
    prepare({file}, out, o);
    return documents(DataSet(path(out)), DataSplit::train);
  };
  EXPECT_EQ(read(DocumentUnit::file, "f"), (std::vector<std::string>{text}));
  EXPECT_EQ(read(DocumentUnit::line, "l"), (std::vector<std::string>{"one", "two", "three", "four"}));
  EXPECT_EQ(read(DocumentUnit::paragraph, "p"), (std::vector<std::string>{"one\ntwo", "three", "four"}));
  const DataSet lines(path("l"));
  EXPECT_EQ(all_tokens(lines.row(DataSplit::train)).back(), kEos);
  EXPECT_EQ(lines.index().documents(DataSplit::train), 4);
  EXPECT_EQ(lines.index().token_bytes, 2);
}

TEST_F(DataSets, JsonLinesAndPackedFilesAndFolders) {
  write("in/b.jsonl", "{\"text\": \"first \\u00fc\", \"id\": 1}\n\n{\"id\": 2, \"text\": \"second\\nline\"}");
  write("in/deep/a.txt", "\xef\xbb\xbfmarked");
  write("in/ignored.bin", std::string("\0\1", 2));
  gzFile gz = ::gzopen(path("in/c.txt.gz").c_str(), "wb");
  const std::string packed = prose(3 << 20, 1);
  ::gzwrite(gz, packed.data(), static_cast<unsigned>(packed.size()));
  ::gzclose(gz);
  prepare({path("in").string()}, "out", all_train());
  const auto found = documents(DataSet(path("out")), DataSplit::train);
  EXPECT_EQ(found, (std::vector<std::string>{"first ü", "second\nline", packed, "marked"}));
  fs::create_directory_symlink("..", path("in/deep/up"));
  EXPECT_EQ(find_texts({path("in").string()}).size(), 3U) << "links in a circle are followed once";
  fs::create_symlink("b.jsonl", path("in/again.jsonl"));
  EXPECT_EQ(find_texts({path("in").string()}).size(), 3U);
  EXPECT_EQ(find_texts({path("in/*.jsonl").string()}).size(), 1U);
  fs::create_symlink("nowhere.txt", path("in/dangling.txt"));
  EXPECT_THROW(find_texts({path("in").string()}), ConfigError);
  fs::remove(path("in/dangling.txt"));
  EXPECT_EQ(find_texts({path("in/*.jsonl").string()}).size(), 1U);
  EXPECT_THROW(find_texts({path("in/*.nothing").string()}), ConfigError);
  EXPECT_THROW(find_texts({path("in").string(), path("in/b.jsonl").string()}), ConfigError) << "twice";
}

TEST_F(DataSets, TextOfAnySizeIsEncodedAsAWhole) {
  const std::string text = prose(5 << 18, 2);  // two blocks
  const std::string file = write("long.txt", text);
  for (const char* name : {"tokenizer.json", "sentencepiece.model", "unigram.model"}) {
    std::optional<Tokenizer> t;
    try {
      t.emplace(load_tokenizer(golden(name)));
    } catch (const ConfigError&) {
      continue;  // built without sentencepiece
    }
    prepare({file}, name, all_train(), *t);
    Ids expected;
    if (t->info().bos) expected.push_back(*t->info().bos);
    t->encode(text, expected);
    if (t->info().eos) expected.push_back(*t->info().eos);
    EXPECT_TRUE(all_tokens(DataSet(path(name)).row(DataSplit::train)) == expected) << name;
  }
}

TEST_F(DataSets, SplitFollowsTheSeed) {
  const std::string file = write("many.txt", prose(400000, 3));
  PrepareOptions o;
  o.unit = DocumentUnit::line;
  o.validation_fraction = 0.1;
  prepare({file}, "one", o);
  prepare({file}, "same", o);
  o.seed = 2;
  prepare({file}, "other", o);
  const DataSet one(path("one")), same(path("same")), other(path("other"));
  const double n = static_cast<double>(one.index().documents(DataSplit::train) +
                                       one.index().documents(DataSplit::validation));
  EXPECT_NEAR(static_cast<double>(one.index().documents(DataSplit::validation)) / n, 0.1, 0.03);
  EXPECT_EQ(one.index().digest(), same.index().digest());
  EXPECT_NE(one.index().digest(), other.index().digest());
  auto both = documents(one, DataSplit::train), held = documents(one, DataSplit::validation);
  both.insert(both.end(), held.begin(), held.end());
  auto all = documents(other, DataSplit::train), held_too = documents(other, DataSplit::validation);
  all.insert(all.end(), held_too.begin(), held_too.end());
  std::ranges::sort(both);
  std::ranges::sort(all);
  EXPECT_EQ(both, all) << "no document is lost";
}

TEST_F(DataSets, TheTokenizerIsKept) {
  const std::string file = golden("tokenizer.json");
  const std::vector<std::string> texts = {write("a.txt", prose(3000, 3))};
  prepare(texts, "out", all_train(), load_tokenizer(file));
  const DataTokenizer t = DataSet(path("out")).index().tokenizer;
  EXPECT_EQ(t.file, "tokenizer.json");
  EXPECT_EQ(read_text_file(path("out/tokenizer.json")), read_text_file(file));
  const auto config = nlohmann::json::parse(read_text_file(path("out/tokenizer_config.json")));
  EXPECT_EQ(config.at("bos_token"), "<|begin_of_text|>");
  EXPECT_EQ(config.at("eos_token"), "<|end_of_text|>");
  EXPECT_EQ(load_tokenizer(path("out").string()).info().digest, t.digest);
  prepare(texts, "ranks", all_train(), load_tokenizer(golden("ranks.model")));
  EXPECT_TRUE(fs::exists(path("ranks/tokenizer.model")));
  EXPECT_FALSE(fs::exists(path("ranks/tokenizer_config.json"))) << "transformers does not read ranks";
  if (sentencepiece_available()) {
    prepare(texts, "pieces", all_train(), load_tokenizer(golden("sentencepiece.model")));
    const auto said = nlohmann::json::parse(read_text_file(path("pieces/tokenizer_config.json")));
    EXPECT_EQ(said.at("tokenizer_class"), "LlamaTokenizer");
    EXPECT_EQ(said.at("add_bos_token"), true) << "as its documents begin";
  }
  prepare(texts, "bytes", all_train());
  EXPECT_EQ(DataSet(path("bytes")).index().tokenizer.file, "");
  // Killed behind the last of its files.
  fs::copy(path("out"), path("again.partial"));
  prepare(texts, "again", all_train(), load_tokenizer(file));
  EXPECT_EQ(read_text_file(path("again/index.json")), read_text_file(path("out/index.json")));
}

}  // namespace
}  // namespace sextant
