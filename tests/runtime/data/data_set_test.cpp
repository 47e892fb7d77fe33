// From texts to sequences: what is written is what was read, in any pieces, however often it was interrupted; and what is
// wrong with an input is said with file and line, and leaves nothing behind.
#include "runtime/data/data_set.hpp"

#include <algorithm>
#include <csignal>
#include <random>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <zlib.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/prepare.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"
#include "runtime/data/sequences.hpp"
#include "runtime/data/utf8.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
constexpr std::int32_t kBos = 256, kEos = 257;

std::string golden(const char* file) {
  return std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/" + file;
}

// Prose with lines and paragraphs, some of it not ASCII.
std::string prose(std::size_t bytes, unsigned seed) {
  static const std::vector<std::string> kWords = {"the",   "ship", "sails", "north", "by",   "night", "über",
                                                  "stars", "and",  "we",    "3.14",  "keep", "log:",  "天地"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    text += kWords[random() % kWords.size()];
    const auto draw = random() % 40;
    text += draw == 0 ? ".\n\n" : draw < 4 ? ".\n" : " ";
  }
  return text + "\n";
}

Ids all_tokens(const TokenRow& row) {
  Ids ids(static_cast<std::size_t>(row.tokens()));
  row.read(0, ids);
  return ids;
}

// Documents of a split as texts of the byte tokenizer.
std::vector<std::string> documents(const DataSet& data, DataSplit split) {
  std::vector<std::string> texts;
  const Ids ids = all_tokens(data.row(split));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == kBos) texts.emplace_back();
    if (ids[i] < 256) texts.back() += static_cast<char>(ids[i]);
  }
  return texts;
}

class DataSets : public testing::Test {
 protected:
  PrepareResult prepare(const std::vector<std::string>& texts, const std::string& out, PrepareOptions o = {},
                        const Tokenizer& tokenizer = byte_tokenizer()) {
    o.out = path(out);
    return prepare_data(find_texts(texts), tokenizer, o);
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  std::string write(const std::string& name, std::string_view text) const {
    return folder_.write(name, text).string();
  }
  static PrepareOptions all_train() {
    PrepareOptions o;
    o.validation_fraction = 0;
    return o;
  }
  // The words of a refusal; "accepted" when there is none. Nothing is left behind.
  std::string refusal(const std::vector<std::string>& texts, PrepareOptions o = {},
                      const Tokenizer& t = byte_tokenizer()) {
    std::string what = "accepted";
    try {
      prepare(texts, "refused", std::move(o), t);
    } catch (const ConfigError& e) {
      what = e.what();
    }
    EXPECT_EQ(fs::exists(path("refused")), what == "accepted") << what;
    EXPECT_FALSE(fs::exists(path("refused.partial"))) << what;
    fs::remove_all(path("refused"));
    return what;
  }
  static void says(const std::string& message, const std::vector<std::string>& words) {
    for (const auto& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  }
  TempDir folder_;
};

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
  std::ranges::sort(both), std::ranges::sort(all);
  EXPECT_EQ(both, all) << "no document is lost";
}

// Every file of two folders, byte for byte.
void expect_same_files(const fs::path& a, const fs::path& b) {
  std::set<std::string> names;
  for (const auto& folder : {a, b})
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  EXPECT_GT(names.size(), 4U);
  for (const auto& name : names) EXPECT_TRUE(read_text_file(a / name) == read_text_file(b / name)) << name;
}

TEST_F(DataSets, InterruptedAnywhereGivesTheSameBytes) {
  const std::string one = write("a.txt", prose(5 << 19, 4)), two = write("b.txt", prose(1 << 20, 5));
  std::string lines;
  for (int i = 0; i < 5000; ++i)
    lines += nlohmann::json({{"text", prose(400, static_cast<unsigned>(i))}}).dump() + "\n";
  const std::string three = write("c.jsonl", lines);
  PrepareOptions o;
  o.validation_fraction = 0.3;
  o.shard_tokens = 300000;
  o.flush_bytes = 1 << 19;
  const Tokenizer t = load_tokenizer(golden("ranks.model"));
  prepare({one, two, three}, "whole", o, t);
  EXPECT_GT(DataSet(path("whole")).index().train.size(), 3U);

  std::mt19937 random(6);
  int kills = 0, resumed = 0;
  for (bool done = false; !done;) {
    ASSERT_LT(kills, 100);
    int blocks = 1 + static_cast<int>(random() % 2);
    o.progress = [&](const PrepareProgress&) {
      if (--blocks == 0) throw std::runtime_error("killed");
    };
    try {
      resumed += prepare({one, two, three}, "pieces", o, t).resumed;
      done = true;
    } catch (const std::runtime_error& e) {
      ASSERT_STREQ(e.what(), "killed");
      ++kills;
      EXPECT_FALSE(fs::exists(path("pieces")));
      // What a kill may leave behind the last point that counts: some more bytes, or a shard of its own.
      if (!fs::exists(path("pieces.partial"))) continue;
      std::string closed;
      if (fs::exists(path("pieces.partial/progress.json")))
        closed = read_text_file(path("pieces.partial/progress.json"));
      for (const auto& entry : fs::directory_iterator(path("pieces.partial")))
        if (entry.path().extension() == ".tokens" && closed.find(entry.path().stem().string()) == closed.npos)
          std::ofstream(entry.path(), std::ios::app) << "torn";
      folder_.write("pieces.partial/train-00099.tokens", "stray");
    }
  }
  EXPECT_GE(kills, 3);
  EXPECT_EQ(resumed, 1);
  expect_same_files(path("whole"), path("pieces"));
  EXPECT_FALSE(fs::exists(path("pieces.partial")));
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

TEST_F(DataSets, AskedToStopItGoesOnLater) {
  const std::string file = write("a.txt", prose(4 << 20, 7));
  prepare({file}, "whole", all_train());
  std::atomic<bool> stop =
      true;  // before the first block: how far the reader is ahead of the writer is chance
  PrepareOptions o = all_train();
  o.stop = &stop;
  EXPECT_TRUE(prepare({file}, "later", o).stopped);
  EXPECT_FALSE(fs::exists(path("later")));
  o.stop = nullptr;
  EXPECT_TRUE(prepare({file}, "later", o).resumed);
  EXPECT_EQ(DataSet(path("later")).index(), DataSet(path("whole")).index());
  // Another command does not go on with what this one began.
  o.stop = &stop;
  EXPECT_TRUE(prepare({file}, "again", o).stopped);
  o.stop = nullptr, o.seed = 5;
  EXPECT_THROW(prepare({file}, "again", o), ConfigError);
}

TEST_F(DataSets, WhatAnEarlierCallFinishedIsLookedAt) {
  const std::string file = write("a.txt", prose(4 << 20, 9));
  PrepareOptions o = all_train();
  o.shard_tokens = 1 << 18;
  o.unit = DocumentUnit::paragraph;
  o.flush_bytes = 1;
  o.progress = [&](const PrepareProgress& p) {
    if (p.tokens > 2 * o.shard_tokens) throw std::runtime_error("killed");
  };
  ASSERT_THROW(prepare({file}, "begun", o), std::runtime_error);
  ASSERT_TRUE(fs::exists(path("begun.partial/train-00001.tokens")));
  o.progress = {};
  const auto told = [&](const std::string& copy) {
    try {
      prepare({file}, copy, o);
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const auto progress =
      nlohmann::json::parse(read_text_file(path("begun.partial/progress.json"))).at("train");
  const std::size_t closed = progress.at("closed").size();
  ASSERT_GT(closed, 0U);
  ASSERT_GT(progress.at("documents"), 10) << "of the shard that is open";
  const std::string open = fmt::format("train-{:05}", closed);
  for (const std::string& damaged : {std::string("train-00000.tokens"), open + ".tokens", open + ".documents",
                                     std::string("progress.json")})
    for (const char* damage : {"missing", "cut", "flipped"}) {
      if (damaged == "progress.json" && damage == std::string("missing"))
        continue;  // nothing has begun, then
      const std::string copy = damaged + "-" + damage;
      fs::copy(path("begun.partial"), path(copy + ".partial"));
      const fs::path spoiled = path(copy + ".partial") / damaged;
      if (damage == std::string("missing")) fs::remove(spoiled);
      if (damage == std::string("cut")) fs::resize_file(spoiled, 70);
      if (damage == std::string("flipped")) {
        std::string bytes = read_text_file(spoiled);
        const std::size_t offset = bytes.find("\"offset\": ");
        const std::size_t at = damaged == "progress.json" ? bytes.find(',', offset) - 1 : 70;
        bytes[at] = static_cast<char>(bytes[at] ^ 1);
        std::ofstream(spoiled, std::ios::binary) << bytes;
      }
      says(told(copy), {damaged, "remove " + path(copy + ".partial").string()});
      EXPECT_FALSE(fs::exists(path(copy)));
    }
  EXPECT_EQ(told("begun"), "accepted");
}

// What a write beyond `ulimit -f` meets is what it meets on a full disk.
TEST_F(DataSets, AWriteThatFailsSaysWhatIsKept) {
  const std::string file = write("a.txt", prose(6 << 20, 2));
  PrepareOptions o = all_train();
  o.flush_bytes = 1 << 20;
  const auto told = [&](const char* out, rlim_t most) {
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{most, before.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string what = "accepted";
    try {
      prepare({file}, out, o);
    } catch (const BackendError& e) {
      what = e.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    return what;
  };
  says(told("late", 5 << 20), {"train-00000.tokens", "File too large", "is kept in", "late.partial"});
  EXPECT_TRUE(fs::exists(path("late.partial/progress.json")));
  EXPECT_TRUE(prepare({file}, "late", o).resumed);
  says(told("soon", 1 << 19), {"train-00000.tokens", "File too large", "nothing is kept"});
  EXPECT_FALSE(fs::exists(path("soon.partial")));
}

TEST_F(DataSets, NothingIsOverwritten) {
  const std::string file = write("a.txt", "text");
  prepare({file}, "out", all_train());
  const std::string before = read_text_file(path("out/index.json"));
  EXPECT_THROW(prepare({file}, "out", all_train()), ConfigError);
  EXPECT_EQ(read_text_file(path("out/index.json")), before);
  write("mine.partial/diary.txt", "dear");
  EXPECT_THROW(prepare({file}, "mine", all_train()), ConfigError);
  EXPECT_EQ(read_text_file(path("mine.partial/diary.txt")), "dear");
}

TEST_F(DataSets, ATextThatShrinksWhileItIsReadIsRefused) {
  const Tokenizer bytes = byte_tokenizer();
  const std::string file = write("shrinks.txt", prose(16 << 20, 8));
  const auto inputs = find_texts({file});
  const auto read_all = [&](bool cut) {
    TextReader reader(inputs, DocumentUnit::line, bytes);
    EXPECT_TRUE(reader.next());
    if (cut) std::filesystem::resize_file(file, 12 << 20);
    while (reader.next()) {
    }
  };
  EXPECT_NO_THROW(read_all(false));
  EXPECT_THROW(read_all(true), ConfigError);
}

TEST_F(DataSets, BadTextsAreNamed) {
  EXPECT_EQ(refusal({write("good.txt", "good")}, all_train()), "accepted");
  says(refusal({path("absent.txt").string()}), {"absent.txt", "no such file"});
  says(refusal({write("empty.txt", "")}), {"empty.txt", "no text"});
  says(refusal({write("latin.txt", "one\ntwo \xe9t\xe9\n")}), {"latin.txt:2", "0xe9", "UTF-8", "--bad-text"});
  says(refusal({write("binary.txt", std::string("ab\ncd\0ef", 8))}), {"binary.txt:2", "NUL", "binary"});
  says(refusal({write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \n")}), {"a.jsonl:2", "a line of JSON"});
  says(refusal({write("b.jsonl", "{\"txt\": \"a\", \"id\": 1}\n")}),
       {"b.jsonl:1", "text", "missing", "id, txt", "--field"});
  says(refusal({write("c.jsonl", "\n\n{\"text\": 7}\n")}), {"c.jsonl:3", "text", "number", "a string"});
  EXPECT_LT(refusal({write("open.jsonl", "{\"text\": \"" + std::string(100'000, 'a') + "\n")}).size(), 600u);
  says(refusal({write("d.jsonl", "[1]\n")}), {"d.jsonl:1", "array", "object"});
  says(refusal({write("e.jsonl", "{\"text\": \"\xff\"}\n")}), {"e.jsonl:1", "UTF-8"});
  const std::string long_one = prose(3 << 20, 8);
  says(refusal({write("late.txt", long_one + "\xff\n")}),
       {"late.txt:" + std::to_string(std::count(long_one.begin(), long_one.end(), '\n') + 1)});
  const std::string packed = write("cut.txt.gz", "\x1f\x8b\x08 this is no gzip");
  says(refusal({packed}), {"cut.txt.gz: found unknown header flags", "to its end"});
  says(refusal({write("page.txt.gz", "<html>404</html>")}), {"page.txt.gz", "no gzip data", "error page"});
  const auto member = [&](std::string_view text) {
    gzFile gz = ::gzopen(path("member.gz").c_str(), "wb");
    ::gzwrite(gz, text.data(), static_cast<unsigned>(text.size()));
    ::gzclose(gz);
    return read_text_file(path("member.gz"));
  };
  const std::string one = member("first\n"), two = member(prose(1 << 20, 3));
  EXPECT_EQ(refusal({write("members.txt.gz", one + two + one)}, all_train()), "accepted");
  EXPECT_EQ(refusal({write("padded.txt.gz", one + two + std::string(700, '\0'))}, all_train()), "accepted");
  std::string flipped = two;
  flipped[0] = static_cast<char>(flipped[0] ^ 1);
  const std::string at = "no gzip data at or behind byte " + std::to_string(one.size());
  says(refusal({write("flipped.txt.gz", one + flipped)}), {"flipped.txt.gz", at, "gzip -t"});
  says(refusal({write("junk.txt.gz", one + "and so on")}), {"junk.txt.gz", at});
  PrepareOptions all_held;
  all_held.validation_fraction = 0.999;
  says(refusal({write("one.txt", "one document")}, all_held), {"held out", "--document paragraph"});
}

TEST_F(DataSets, BadTextsAreLeftOutOrMended) {
  const std::string file =
      write("mixed.jsonl", "{\"text\": \"good\"}\nno json\n{\"text\": \"\xff!\"}\n{\"text\": \"fine\"}\n");
  PrepareOptions o = all_train();
  o.bad_text = BadText::skip;
  const auto skipped = prepare({file}, "skipped", o);
  EXPECT_EQ(skipped.documents_left_out, 2);
  says(skipped.first_left_out, {"mixed.jsonl:2"});
  EXPECT_EQ(documents(DataSet(path("skipped")), DataSplit::train),
            (std::vector<std::string>{"good", "fine"}));
  const auto empty =
      prepare({write("empty.jsonl", "{\"text\": \"good\"}\n{\"text\": \"\"}\n\n{\"text\": \"\"}\n")}, "empty",
              all_train());
  EXPECT_EQ(empty.documents_left_out, 2) << "an empty line is no document";
  says(empty.first_left_out, {"empty.jsonl:2", "empty document"});
  o.bad_text = BadText::replace;
  EXPECT_EQ(prepare({file}, "mended", o).documents_left_out, 1);
  EXPECT_EQ(documents(DataSet(path("mended")), DataSplit::train),
            (std::vector<std::string>{"good", "\xef\xbf\xbd!", "fine"}));
}

// A data set whose files were tampered with.
TEST_F(DataSets, DamageIsFound) {
  prepare({write("a.txt", prose(100000, 9))}, "good", all_train());
  const auto damaged = [&](const std::function<void(const fs::path&)>& change) {
    fs::remove_all(path("bad"));
    fs::copy(path("good"), path("bad"));
    change(path("bad"));
    try {
      const DataSet data(path("bad"));
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const auto edit = [](const fs::path& file, const std::function<void(nlohmann::json&)>& change) {
    auto j = nlohmann::json::parse(read_text_file(file));
    change(j);
    std::ofstream(file) << j;
  };
  EXPECT_EQ(damaged([](const fs::path&) {}), "accepted");
  says(damaged([](const fs::path& p) { fs::resize_file(p / "train-00000.tokens", 1000); }),
       {"train-00000.tokens", "1000 bytes", "cut"});
  says(damaged([](const fs::path& p) { fs::remove(p / "train-00000.documents"); }),
       {"train-00000.documents", "no such file"});
  says(damaged([](const fs::path& p) {
         std::fstream f(p / "train-00000.tokens", std::ios::in | std::ios::out | std::ios::binary);
         f.seekp(500), f.put('\x02');
       }),
       {"train-00000.tokens", "digest", "damaged"});
  says(damaged([](const fs::path& p) { fs::remove(p / "index.json"); }), {"bad", "no index.json"});
  says(damaged([&](const fs::path& p) { edit(p / "index.json", [](auto& j) { j["schema"] = "other/1"; }); }),
       {"schema", "other/1"});
  says(damaged([&](const fs::path& p) {
         edit(p / "index.json", [](auto& j) { j["train"][0]["name"] = "../../etc/x"; });
       }),
       {"train[0].name", "plain file name"});
  says(damaged([&](const fs::path& p) {
         edit(p / "index.json", [](auto& j) { j["train"][0].erase("tokens"); });
       }),
       {"train[0].tokens"});
  says(damaged([&](const fs::path& p) {
         edit(p / "index.json", [](auto& j) { j["tokenizer"]["vocab_size"] = 100000; });
       }),
       {"token_bytes"});
  says(damaged([&](const fs::path& p) {
         edit(p / "index.json", [](auto& j) { j["tokenizer"]["vocab_size"] = 100; });
       }),
       {"index.json", "index_digest", "damaged"});
  says(damaged([&](const fs::path& p) { edit(p / "index.json", [](auto& j) { j.erase("index_digest"); }); }),
       {"index.json", "index_digest", "none"});
  const std::string index = read_text_file(path("good/index.json"));
  for (const std::string_view word : {"made_from", "a.txt", "text_bytes", "seed", "index_digest"})
    says(damaged([&](const fs::path& p) {
           std::string text = index;
           text[text.find(word)] ^= 1;
           std::ofstream(p / "index.json") << text;
         }),
         {"index.json"});
  says(damaged([&](const fs::path& p) { std::ofstream(p / "index.json", std::ios::app).write("\0\0", 2); }),
       {"index.json", "NUL byte"});
  says(damaged([&](const fs::path& p) { std::ofstream(p / "index.json", std::ios::app) << "{}"; }),
       {"index.json", "syntax error"});
  // An index from before it had a digest.
  says(damaged([&](const fs::path& p) {
         edit(p / "index.json", [](auto& j) {
           j["tokenizer"]["vocab_size"] = 100, j["schema"] = "sextant.data/1", j.erase("index_digest");
         });
       }),
       {"accepted"});
  // Found when it is read, then.
  const DataSet low(path("bad"));
  Ids some(100);
  EXPECT_THROW(low.row(DataSplit::train).read(0, some), ConfigError);
  EXPECT_THROW(DataSet(path("nothing")), ConfigError);
}

class Sequences : public DataSets {
 protected:
  std::shared_ptr<const DataSet> make(const std::string& name, std::size_t bytes, unsigned seed,
                                      double held = 0.2) {
    PrepareOptions o;
    o.unit = DocumentUnit::line;
    o.validation_fraction = held;
    o.shard_tokens = 3000;  // windows reach over shards
    prepare({write(name + ".txt", prose(bytes, seed))}, name, o);
    return std::make_shared<const DataSet>(path(name));
  }
  static constexpr SequenceOptions kOptions = {.seq_len = 32, .global_batch = 4, .seed = 9};
  static Ids read(const TokenSource& source, std::int64_t step, int sequence) {
    Ids tokens(kOptions.seq_len + 1);
    source(step, sequence, tokens);
    return tokens;
  }
};

TEST_F(Sequences, AnEpochHasEveryWindowOnce) {
  const auto data = make("a", 30000, 1);
  const Ids all = all_tokens(data->row(DataSplit::train));
  const std::int64_t n = Windows(data->row(DataSplit::train), 32, Packing::across, false).count();
  ASSERT_EQ(n, (static_cast<std::int64_t>(all.size()) - 1) / 32);
  const TokenSource source = training_sequences({{data, 1}}, kOptions);
  std::vector<std::set<Ids>> epochs(2);
  std::vector<Ids> orders(2);
  for (std::int64_t i = 0; i < 2 * n; ++i) {
    const Ids window = read(source, i / 4, static_cast<int>(i % 4));
    epochs[static_cast<std::size_t>(i / n)].insert(window);
    orders[static_cast<std::size_t>(i / n)].push_back(window[0] * 1000 + window[1]);
  }
  std::set<Ids> expected;
  for (std::int64_t w = 0; w < n; ++w) expected.insert(Ids(all.begin() + w * 32, all.begin() + w * 32 + 33));
  EXPECT_EQ(epochs[0], expected);
  EXPECT_EQ(epochs[1], expected);
  EXPECT_NE(orders[0], orders[1]) << "each epoch in an order of its own";
  EXPECT_EQ(read(source, 5, 2), read(training_sequences({{data, 1}}, kOptions), 5, 2)) << "no memory";
}

TEST_F(Sequences, WithinDocumentsNoWindowCrossesTheirEnds) {
  const auto data = make("a", 30000, 2);
  SequenceOptions within = kOptions;
  within.packing = Packing::within;
  const TokenRow& row = data->row(DataSplit::train);
  const Windows windows(row, 32, Packing::within, false);
  std::int64_t targets = 0, in_documents = 0, long_ones = 0;
  row.for_each_document([&](std::int64_t begin, std::int64_t end) {
    in_documents += end - begin - 1, long_ones += end - begin > 33;
  });
  ASSERT_GT(long_ones, 0) << "of several windows";
  for (std::int64_t w = 0; w < windows.count(); ++w) {
    Ids tokens(33);
    windows.read(w, tokens);
    const auto fill = std::ranges::find(tokens, ~0);
    EXPECT_TRUE(std::all_of(fill, tokens.end(), [](std::int32_t t) { return t == ~0; }));
    EXPECT_EQ(std::count(tokens.begin() + 1, fill, kBos), 0) << "one document";
    const auto eos = std::find(tokens.begin(), fill, kEos);
    EXPECT_TRUE(eos == fill || eos + 1 == fill) << "nothing behind its end";
    targets += fill - tokens.begin() - 1;
  }
  EXPECT_EQ(targets, in_documents) << "every target once";
  EXPECT_NEAR(windows.filled(), static_cast<double>(targets) / static_cast<double>(windows.count() * 32),
              1e-12);
  EXPECT_NE(read(training_sequences({{data, 1}}, within), 3, 1),
            read(training_sequences({{data, 1}}, kOptions), 3, 1));
}

TEST_F(Sequences, ApartTheirFirstTokensAreMarked) {
  const auto data = make("a", 30000, 2);
  const TokenRow& row = data->row(DataSplit::train);
  ASSERT_GT(data->index().train.size(), 2U) << "windows reach over shards";
  std::set<std::int64_t> begins;
  row.for_each_document([&](std::int64_t begin, std::int64_t) { begins.insert(begin); });
  const Windows across(row, 32, Packing::across, true), apart(row, 32, Packing::apart, true);
  ASSERT_EQ(apart.count(), across.count());
  std::size_t marked = 0;
  for (std::int64_t w = 0; w < apart.count(); ++w) {
    Ids plain(33), tokens(33);
    across.read(w, plain), apart.read(w, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t place = w * 32 + static_cast<std::int64_t>(i);
      if (place < row.tokens() && begins.contains(place)) {
        EXPECT_EQ(tokens[i], ~kBos) << place;
        marked += i < 32;  // the last one is the next window's first
      } else {
        EXPECT_EQ(tokens[i], plain[i]) << place;
      }
    }
  }
  EXPECT_EQ(marked, begins.size()) << "every document";
}

TEST_F(Sequences, HeldOutTextIsSeenOnceAndInOrder) {
  const auto data = make("a", 30000, 3);
  const Ids all = all_tokens(data->row(DataSplit::validation));
  const TokenSource source = validation_sequences(data, kOptions);
  Ids seen;
  const std::int64_t batches = validation_batches(*data, kOptions);
  for (std::int64_t i = 0; i < batches * 4; ++i) {
    const Ids window = read(source, i / 4, static_cast<int>(i % 4));
    for (std::size_t t = 1; t < window.size(); ++t)
      if (window[t] >= 0) seen.push_back(window[t]);
  }
  EXPECT_EQ(seen, Ids(all.begin() + 1, all.end())) << "every target once";
  const Ids behind = read(source, batches, 0);
  EXPECT_TRUE(std::ranges::all_of(behind, [](std::int32_t t) { return t < 0; }));
}

TEST_F(Sequences, MixedByWeight) {
  const auto a = make("a", 30000, 4), b = make("b", 20000, 5);
  const TokenSource source = training_sequences({{a, 3}, {b, 1}}, kOptions);
  std::set<Ids> of_a;
  const Ids all = all_tokens(a->row(DataSplit::train));
  for (std::size_t w = 0; w + 33 <= all.size(); w += 32)
    of_a.insert(
        Ids(all.begin() + static_cast<std::ptrdiff_t>(w), all.begin() + static_cast<std::ptrdiff_t>(w) + 33));
  int from_a = 0;
  for (std::int64_t i = 0; i < 2000; ++i)
    from_a += of_a.contains(read(source, i / 4, static_cast<int>(i % 4)));
  EXPECT_NEAR(from_a / 2000.0, 0.75, 0.04);
  EXPECT_NE(data_identity({{a, 3}, {b, 1}}, kOptions), data_identity({{a, 1}, {b, 1}}, kOptions));
}

TEST_F(Sequences, TooShortASetIsRefused) {
  const auto data = make("a", 300, 6, 0.0);
  SequenceOptions long_ones = kOptions;
  long_ones.seq_len = 100000;
  EXPECT_THROW(training_sequences({{data, 1}}, long_ones), ConfigError);
  EXPECT_THROW(validation_sequences(data, kOptions), ConfigError) << "nothing was held out";
}

}  // namespace
}  // namespace sextant
