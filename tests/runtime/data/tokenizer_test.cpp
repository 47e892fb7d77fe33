// Tokenizers against the libraries that define them (tests/golden/tokenizers/make_golden.py), and what must hold of each:
// what goes in comes out again, whatever it is, and a text may be divided where a tokenizer says so.
#include "runtime/data/tokenizer.hpp"

#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/file_io.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"
#include "runtime/data/utf8.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kGolden = std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/";

struct Case {
  const char* key;
  const char* file;
  TokenizerKind kind;
};
constexpr Case kCases[] = {{"json", "tokenizer.json", TokenizerKind::bpe_json},
                           {"gpt2", "gpt2.json", TokenizerKind::bpe_json},
                           {"ranks", "ranks.model", TokenizerKind::tiktoken},
                           {"sentencepiece", "sentencepiece.model", TokenizerKind::sentencepiece},
                           {"unigram", "unigram.model", TokenizerKind::sentencepiece}};

json golden() {
  json j;
  std::ifstream(kGolden + "golden.json") >> j;
  return j;
}

// Characters that meet in texts, and some that seldom do.
std::string random_text(std::mt19937& random, int characters) {
  static const std::vector<std::string> kSome = {
      "a",  "e",  "t",      "T",      "'s",         "'",      "1",      "23", " ", " ",
      "  ", "\n", "\r\n",   "\t",     "the ",       "or",     ". ",     ", ", "-", "(",
      "{}", "ü",  "\u0301", "\u5929", "\U0001f600", "\u00a0", "\u2028", "ſ"};
  std::string text;
  for (int i = 0; i < characters; ++i) text += kSome[random() % kSome.size()];
  return text;
}

class TokenizerOf : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().kind == TokenizerKind::sentencepiece && !sentencepiece_available())
      GTEST_SKIP() << "built without sentencepiece";
    tokenizer_.emplace(load_tokenizer(kGolden + GetParam().file));
  }
  std::optional<Tokenizer> tokenizer_;
};

TEST_P(TokenizerOf, GivesTheIdsOfItsLibrary) {
  const json all = golden();
  EXPECT_EQ(tokenizer_->info().kind, GetParam().kind);
  ASSERT_GE(all.at("texts").size(), 50U);
  for (const json& row : all.at("texts")) {
    const auto text = row.at("text").get<std::string>();
    EXPECT_EQ(tokenizer_->encode(text), row.at(GetParam().key).get<Ids>()) << row.at("text");
    for (const std::int32_t id : tokenizer_->encode(text)) EXPECT_LT(id, tokenizer_->vocab_size());
  }
  if (all.at("bos_eos").contains(GetParam().key)) {
    const auto frame = all.at("bos_eos").at(GetParam().key).get<std::vector<int>>();
    EXPECT_EQ(tokenizer_->info().bos, frame[0]);
    EXPECT_EQ(tokenizer_->info().eos, frame[1]);
    EXPECT_EQ(tokenizer_->decode(frame), "");
  }
}

TEST_P(TokenizerOf, RoundTrip) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(random, static_cast<int>(random() % 60));
    const Ids ids = tokenizer_->encode(text);
    ASSERT_EQ(tokenizer_->decode(ids), text);
    if (ids.size() < 2) continue;
    const Ids lost(ids.begin(), ids.end() - 1);  // negative control: an id carries text
    ASSERT_NE(tokenizer_->decode(lost), text);
  }
}

TEST_P(TokenizerOf, AnyBytes) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = random_text(random, 10);
    for (int i = 0; i < 4; ++i)
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % (bytes.size() + 1)),
                   static_cast<char>(random()));
    const std::string back = tokenizer_->decode(tokenizer_->encode(bytes));
    if (GetParam().kind == TokenizerKind::sentencepiece) {
      ASSERT_EQ(valid_utf8_prefix(back), back.size());
    } else {
      ASSERT_EQ(back, bytes);
    }
  }
}

TEST_P(TokenizerOf, DividesWhereItSays) {
  std::mt19937 random(3);
  // The likeliest row of pieces of a whole is not always those of its parts: a unigram model is given whole texts.
  const bool whole = GetParam().key == std::string_view("unigram");
  int divided = 0;
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(random, 200);
    const auto cut = tokenizer_->last_cut(text);
    if (!cut) continue;
    ++divided;
    ASSERT_GT(cut->end, 0U);
    Ids ids = tokenizer_->encode(std::string_view(text).substr(0, cut->end));
    tokenizer_->encode(std::string_view(text).substr(cut->end + cut->skip), ids);
    ASSERT_EQ(ids, tokenizer_->encode(text)) << text;
  }
  EXPECT_TRUE(whole ? divided == 0 : divided > 30) << divided;
}

TEST_P(TokenizerOf, DigestsTellFilesApart) {
  const std::string mine = tokenizer_->info().digest;
  EXPECT_EQ(mine.size(), 32U);
  for (const Case& other : kCases) {
    if (std::string_view(other.key) == GetParam().key) continue;
    if (other.kind == TokenizerKind::sentencepiece && !sentencepiece_available()) continue;
    EXPECT_NE(load_tokenizer(kGolden + other.file).info().digest, mine);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, TokenizerOf, testing::ValuesIn(kCases),
                         [](const auto& param_info) { return std::string(param_info.param.key); });

TEST(ByteTokenizer, BytesAndBack) {
  const Tokenizer bytes = load_tokenizer("bytes");
  EXPECT_EQ(bytes.encode("a\xff\n"), (Ids{'a', 0xff, '\n'}));
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(bytes.decode(bytes.encode(all)), all);
  const Ids framed = {*bytes.info().bos, 'x', *bytes.info().eos, -1, 1000};
  EXPECT_EQ(bytes.decode(framed), "x");
  EXPECT_EQ(bytes.vocab_size(), 258);
}

TEST(Utf8, WellFormedAsUnicodeHasIt) {
  for (const char* good : {"", "abc", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(valid_utf8_prefix(good), std::string_view(good).size()) << good;
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc1\x81", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x82", "\xf0\x9f\x98"}) {
    EXPECT_EQ(valid_utf8_prefix(std::string("12345678") + bad + "x"), 8U) << bad;
    const std::string mended = replace_invalid_utf8(std::string("a") + bad + "z");
    EXPECT_EQ(valid_utf8_prefix(mended), mended.size());
    EXPECT_EQ(mended.find("a\xef\xbf\xbd"), 0U);
    EXPECT_EQ(mended.back(), 'z');
  }
}

// A tokenizer file that is wrong in one place, and the words of its refusal.
class TokenizerFiles : public testing::Test {
 protected:
  static std::string refusal(const std::string& text, const std::string& file = "tokenizer.json") {
    const TempDir folder;
    try {
      load_tokenizer(folder.write(file, text).string());
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "accepted";
  }
  // The golden file with a field changed.
  static std::string changed(const std::string& pointer, const json& value) {
    json j = json::parse(read_text_file(kGolden + "tokenizer.json"));
    j[json::json_pointer(pointer)] = value;
    return j.dump();
  }
  static void says(const std::string& message, const std::vector<std::string>& words) {
    for (const auto& word : words)
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
  }
};

TEST_F(TokenizerFiles, OfHuggingFaceThatCannotBeFollowed) {
  EXPECT_EQ(refusal(changed("/version", "1.0")), "accepted");
  says(refusal(changed("/model/type", "WordPiece")), {"tokenizer.json", "model.type", "WordPiece", "BPE"});
  EXPECT_EQ(refusal(changed("/normalizer", {{"type", "NFC"}})), "accepted");
  says(refusal(changed("/normalizer", {{"type", "Nmt"}})), {"normalizer.type", "Nmt"});
  says(refusal(changed("/pre_tokenizer", nullptr)), {"model.unk_token", "none"});
  says(refusal(changed("/pre_tokenizer/pretokenizers/0/type", "Scripts")),
       {"pre_tokenizer.pretokenizers[0].type", "Scripts"});
  says(refusal(changed("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a")),
       {"pattern.Regex", "(a", "parenthesis"});
  says(refusal(changed("/model/vocab", json::object())), {"added_tokens", "the next that is free"});
  says(refusal(R"({"model": {"vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel",
      "add_prefix_space": false}})"),
       {"byte 0x00"});
  says(refusal(changed("/model/vocab/a", -1)), {"model.vocab[\"a\"]", "-1"});
  says(refusal(changed("/model/vocab/a", 1 << 30)), {"model.vocab[\"a\"]", "1073741824"});
  says(refusal(changed("/model/vocab/a", 66)), {"model.vocab[", "an id of its own"});
  says(refusal(changed("/model/merges/0", json::array({"a", "never"}))), {"model.merges[0]", "never"});
  says(refusal(changed("/model/merges/0", 7)), {"model.merges[0]", "two tokens"});
  says(refusal(changed("/added_tokens/0/id", 3)), {"added_tokens", "id 3"});
  says(refusal(R"({"model": 3})"), {"model", "an object"});
  const std::string whole = read_text_file(kGolden + "tokenizer.json");
  says(refusal(whole.substr(0, whole.size() / 2)), {"tokenizer.json"});
}

TEST_F(TokenizerFiles, OfRanks) {
  const std::string whole = read_text_file(kGolden + "ranks.model");
  EXPECT_EQ(refusal(whole, "tokenizer.model"), "accepted");
  EXPECT_EQ(refusal(whole.substr(0, whole.size() - 1), "tokenizer.model"), "accepted");
  says(refusal("IQ== 0\nIg== 2\n"), {"tokenizer.json:2", "rank 2", "rank 1"});
  says(refusal("IQ== 0\nIQ== 1\n"), {":2", "IQ==", "once"});
  says(refusal("IQ== 0\nI*== 1\n"), {":2", "base64"});
  says(refusal("IQ== 0\nIg== one\n"), {":2", "base64"});
  says(refusal("IQ== 0\nIg== 99999999999999999999999\n"), {":2"});
  says(refusal(whole.substr(0, whole.find("Ig== ") + 7)), {"byte 0x"});
}

TEST_F(TokenizerFiles, OfOtherKinds) {
  says(refusal(""), {"empty", "sentencepiece"});
  says(refusal(std::string("\x7f"
                           "ELF\0\0",
                           6)),
       {"sentencepiece model, tokenizer.json"});
  says(refusal("just prose"), {"sentencepiece model, tokenizer.json"});
  if (sentencepiece_available()) {
    const std::string model = read_text_file(kGolden + "sentencepiece.model");
    EXPECT_EQ(refusal(model, "tokenizer.model"), "accepted");
    says(refusal(model.substr(0, 1000)), {"sentencepiece model"});
    says(refusal("\x0a\x0e\x0a\x05<unk>\x15"), {"sentencepiece model"});
  }
  EXPECT_THROW(load_tokenizer("/no/such/file"), ConfigError);
  const TempDir folder;
  EXPECT_THROW(load_tokenizer(folder.path().string()), ConfigError);
  folder.write("tokenizer.json", read_text_file(kGolden + "tokenizer.json"));
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<|end_of_text|>"}, "eos_token": "<|begin_of_text|>"})");
  const Tokenizer named = load_tokenizer(folder.path().string());
  EXPECT_GT(named.info().bos, named.info().eos) << "tokenizer_config.json names them";
}

}  // namespace
}  // namespace sextant
