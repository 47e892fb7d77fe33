// What is wrong with a text or a data set is said with file and line, and leaves nothing behind.
#include <algorithm>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/prepare.hpp"
#include "tests/runtime/data/data_sets.hpp"

namespace sextant {
namespace {

using namespace data_sets;

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
class DamagedSets : public DataSets {
 protected:
  DamagedSets() { prepare({write("a.txt", prose(100000, 9))}, "good", all_train()); }
  std::string damaged(const std::function<void(const fs::path&)>& change) {
    fs::remove_all(path("bad"));
    fs::copy(path("good"), path("bad"));
    change(path("bad"));
    try {
      const DataSet data(path("bad"));
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "accepted";
  }
  std::string damaged_index(const std::function<void(nlohmann::json&)>& change) {
    return damaged([&](const fs::path& p) {
      auto j = nlohmann::json::parse(read_text_file(p / "index.json"));
      change(j);
      std::ofstream(p / "index.json") << j;
    });
  }
};

TEST_F(DamagedSets, FilesAreNamed) {
  EXPECT_EQ(damaged([](const fs::path&) {}), "accepted");
  says(damaged([](const fs::path& p) { fs::resize_file(p / "train-00000.tokens", 1000); }),
       {"train-00000.tokens", "1000 bytes", "cut"});
  says(damaged([](const fs::path& p) { fs::remove(p / "train-00000.documents"); }),
       {"train-00000.documents", "no such file"});
  says(damaged([](const fs::path& p) {
         std::fstream f(p / "train-00000.tokens", std::ios::in | std::ios::out | std::ios::binary);
         f.seekp(500);
         f.put('\x02');
       }),
       {"train-00000.tokens", "digest", "damaged"});
  says(damaged([](const fs::path& p) { fs::remove(p / "index.json"); }), {"bad", "no index.json"});
}

TEST_F(DamagedSets, TheIndexIsNamed) {
  says(damaged_index([](auto& j) { j["schema"] = "other/1"; }), {"schema", "other/1"});
  says(damaged_index([](auto& j) { j["train"][0]["name"] = "../../etc/x"; }),
       {"train[0].name", "plain file name"});
  says(damaged_index([](auto& j) { j["train"][0].erase("tokens"); }), {"train[0].tokens"});
  says(damaged_index([](auto& j) { j["tokenizer"]["vocab_size"] = 100000; }), {"token_bytes"});
  says(damaged_index([](auto& j) { j["tokenizer"]["vocab_size"] = 100; }),
       {"index.json", "index_digest", "damaged"});
  says(damaged_index([](auto& j) { j.erase("index_digest"); }), {"index.json", "index_digest", "none"});
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
  says(damaged_index([](auto& j) {
         j["tokenizer"]["vocab_size"] = 100;
         j["schema"] = "sextant.data/1";
         j.erase("index_digest");
       }),
       {"accepted"});
  // Found when it is read, then.
  const DataSet low(path("bad"));
  Ids some(100);
  EXPECT_THROW(low.row(DataSplit::train).read(0, some), ConfigError);
  EXPECT_THROW(DataSet(path("nothing")), ConfigError);
}

}  // namespace
}  // namespace sextant
