// Texts made into sequences by a call that is interrupted, however often: what is written is the same, and what an earlier call
// has left is looked at.
#include <atomic>
#include <csignal>
#include <fstream>
#include <random>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/prepare.hpp"
#include "tests/runtime/data/data_sets.hpp"

namespace sextant {
namespace {

using namespace data_sets;

// Every file of two folders, byte for byte.
void expect_same_files(const fs::path& a, const fs::path& b) {
  std::set<std::string> names;
  for (const auto& folder : {a, b})
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  EXPECT_GT(names.size(), 4U);
  for (const auto& name : names) EXPECT_TRUE(read_text_file(a / name) == read_text_file(b / name)) << name;
}

// A text without an end of lines is read on and on until it is too long: whoever asks to end does not wait for that.
TEST_F(DataSets, ReadingEndsAmidATextWithoutLines) {
  const std::string file = write("a.txt", std::string(5 << 20, 'x'));
  const std::vector<TextInput> inputs = {{.path = file, .bytes = 5 << 20}};
  const Tokenizer t = load_tokenizer("bytes");
  std::atomic<bool> stop = false;
  TextReader all(inputs, DocumentUnit::paragraph, t, {}, &stop);
  const auto block = all.next();
  ASSERT_TRUE(block) << "control";
  EXPECT_EQ(block->text.size(), std::size_t{5} << 20);
  TextReader stopped(inputs, DocumentUnit::paragraph, t, {}, &stop);
  stop = true;
  EXPECT_FALSE(stopped.next());
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
  o.stop = nullptr;
  o.seed = 5;
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

}  // namespace
}  // namespace sextant
