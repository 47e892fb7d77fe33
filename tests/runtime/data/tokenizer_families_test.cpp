// Tokenizers with the steps of the families' real files against the tokenizers library (make_families.py), and what must hold of
// each: ids below the vocabulary, any bytes, texts divided where a tokenizer says so.
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/split_pattern.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kFamilies = std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/families/";

const json& family_ids() {
  static const json all = [] {
    json j;
    std::ifstream(kFamilies + "ids.json") >> j;
    return j;
  }();
  return all;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const auto& [name, ids] : family_ids().at("families").items()) names.push_back(name);
  return names;
}

std::string some_text(std::mt19937& random, int parts) {
  static const std::vector<std::string> kSome = {
      "a",   "word",        "The",     "'s",     "12",         "3",      " ",      " ",
      "  ",  "\n",          "\n",      "\r\n",   "\t",         ". ",     "/",      "-",
      "{}",  "ü",           "e\u0301", "\u5929", "\U0001f600", "\u00a0", "\u2028", "\u2581",
      "<s>", "<tool_call>", "<think>", "</s>",   "=",          "A",      "<word>"};
  std::string text;
  for (int i = 0; i < parts; ++i) text += kSome[random() % kSome.size()];
  return text;
}

class TokenizerFamily : public testing::TestWithParam<std::string> {
 protected:
  Tokenizer tokenizer_ = load_tokenizer(kFamilies + GetParam() + ".json");
};

TEST_P(TokenizerFamily, GivesTheIdsOfTheLibrary) {
  const json& texts = family_ids().at("texts");
  const json& expected = family_ids().at("families").at(GetParam());
  ASSERT_EQ(texts.size(), expected.size());
  ASSERT_GE(texts.size(), 100U);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Ids ids = tokenizer_.encode(texts[i].get<std::string>());
    ASSERT_EQ(ids, expected[i].get<Ids>()) << texts[i];
    for (const std::int32_t id : ids) ASSERT_LT(id, tokenizer_.vocab_size());
  }
}

TEST_P(TokenizerFamily, AnotherIsAnother) {  // the control: the texts tell the tokenizers apart
  std::vector<Ids> mine;
  for (const json& text : family_ids().at("texts"))
    mine.push_back(tokenizer_.encode(text.get<std::string>()));
  for (const auto& [name, ids] : family_ids().at("families").items())
    if (name != GetParam()) {
      EXPECT_TRUE(ids.get<std::vector<Ids>>() != mine)
          << GetParam() << " and " << name
          << " read every text alike: a family whose tokenizer has the steps of "
          << "another's needs no case of its own";
    }
}

TEST_P(TokenizerFamily, AnyBytes) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    std::string bytes = some_text(random, 10);
    for (int i = 0; i < 4; ++i)
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % (bytes.size() + 1)),
                   static_cast<char>(random()));
    const Ids ids = tokenizer_.encode(bytes);
    for (const std::int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer_.vocab_size());
    if (tokenizer_.info().restores_text) {
      ASSERT_EQ(tokenizer_.decode(ids), bytes);
    }
  }
}

TEST_P(TokenizerFamily, DividesWhereItSays) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const std::string text = some_text(random, 150);
    const auto cut = tokenizer_.last_cut(text);
    if (!cut) continue;
    Ids ids = tokenizer_.encode(std::string_view(text).substr(0, cut->end));
    tokenizer_.encode(std::string_view(text).substr(cut->end + cut->skip), ids);
    ASSERT_EQ(ids, tokenizer_.encode(text)) << text << "\n at " << cut->end;
  }
}

TEST_P(TokenizerFamily, ThreadsAgree) {
  std::mt19937 random(4);
  std::vector<std::string> texts;
  std::vector<Ids> alone;
  for (int i = 0; i < 50; ++i) texts.push_back(some_text(random, 100));
  for (const std::string& text : texts) alone.push_back(tokenizer_.encode(text));
  std::vector<std::vector<Ids>> found(3);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : found)
      threads.emplace_back([&] {
        for (const std::string& text : texts) mine.push_back(tokenizer_.encode(text));
      });
  }
  for (const auto& mine : found) EXPECT_EQ(mine, alone);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerFamily, testing::ValuesIn(family_names()),
                         [](const auto& param_info) { return param_info.param; });

TEST(TokenizerFamilies, AllThatAreNamed) {
  const auto names = family_names();
  const std::set<std::string> there(names.begin(), names.end());
  for (const char* name :
       {"llama2", "llama3", "mistral_v3", "mistral_nemo", "qwen2", "qwen3", "internlm2", "internlm3",
        "baichuan2", "phi3", "olmo2", "gemma2", "yi", "seed_oss", "bloom", "gpt2"})
    EXPECT_TRUE(there.contains(name)) << name;
}

// Families of whose texts documents of any size are made piece by piece.
TEST(TokenizerFamilies, ThatDivideTexts) {
  const std::string text = "one line of words\nanother line of words";
  for (const char* name : {"llama2", "mistral_v3", "internlm3", "qwen2", "qwen3", "llama3", "mistral_nemo",
                           "olmo2", "gpt2", "gemma2"}) {
    EXPECT_TRUE(load_tokenizer(kFamilies + name + ".json").last_cut(text)) << name;
  }
}

TEST(TokenizerFamilies, SpellTextsBack) {
  for (const char* name : {"llama2", "mistral_v3", "gemma2", "yi", "qwen3", "clip"}) {
    const Tokenizer t = load_tokenizer(kFamilies + name + ".json");
    const std::string text = name == std::string_view("clip") ? "words" : "The quick  brown\nfox é天";
    EXPECT_EQ(t.decode(t.encode(text)).substr(0, text.size()),
              name == std::string_view("clip") ? "words" : text)
        << name;
  }
}

// Documents begin as the file says.
TEST(TokenizerFamilies, BosInFront) {
  const auto info = [](const char* name, const std::string& config = "") {
    std::ifstream in(kFamilies + name + ".json");
    return parse_tokenizer_json(std::string(std::istreambuf_iterator<char>(in), {}), name, config).info();
  };
  EXPECT_TRUE(info("llama2").bos && info("llama2").bos_in_front);
  EXPECT_EQ(info("gemma2").bos_name, "<bos>");
  EXPECT_TRUE(info("gemma2").bos_in_front);
  EXPECT_FALSE(info("llama2", R"({"add_bos_token": false})").bos_in_front);
  EXPECT_FALSE(info("qwen2", R"({"bos_token": null, "eos_token": "<|endoftext|>"})").bos);
  EXPECT_EQ(info("qwen2", R"({"bos_token": null, "eos_token": "<|im_end|>"})").eos_name, "<|im_end|>");
  const auto both = info("gpt2", R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})");
  EXPECT_TRUE(both.bos && both.bos == both.eos && !both.bos_in_front)
      << "one token between documents is enough";
}

TEST(OnigurumaPatterns, CutAsTheLibraryDoes) {
  json all;
  std::ifstream(kFamilies + "patterns.json") >> all;
  const json& texts = all.at("texts");
  const json& patterns = all.at("patterns");
  ASSERT_GE(patterns.size(), 100U);
  std::size_t cut_differently = 0;
  for (const json& row : patterns) {
    const auto pattern = row.at("pattern").get<std::string>();
    const SplitPattern split(pattern, "file", "key");
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i].get<std::string>();
      std::vector<std::string_view> pieces;
      split.split(text, pieces);
      EXPECT_EQ(json(pieces), row.at("pieces")[i]) << pattern << " on " << texts[i];
      cut_differently += row.at("pieces")[i] != patterns[0].at("pieces")[i];
    }
  }
  EXPECT_GT(cut_differently, patterns.size()) << "the control: patterns differ";
}

TEST(OnigurumaPatterns, RefusesWhatItDoesNotKnow) {
  for (const char* pattern : {"(",
                              "(a",
                              "a)",
                              "[a",
                              "*a",
                              "a**",
                              "a+{2}",
                              "a{2}?",
                              "(?x)a",
                              "a(?i)b|c",
                              "(?<name>a)",
                              "(?P<n>a)",
                              "(?~a)",
                              "(*FAIL)",
                              "(?{x})",
                              "(?R)",
                              "(?(1)a)",
                              R"(\K)",
                              R"(\X)",
                              R"(\G)",
                              R"(\k<1>)",
                              R"(\pL)",
                              R"(\p{Emoji_Of_Mine})",
                              R"(\p{L)",
                              R"([\W])",
                              "[^a[^b]]",
                              "[a&&b]",
                              "[a[^b]]",
                              R"(\xff)",
                              R"(\x{110000})",
                              R"(\x{d800})",
                              R"(\u12)",
                              R"(\01)",
                              R"(\y)",
                              "a\\",
                              "[[:punct:]]",
                              "a{99999999}",
                              "(?<=a+)b"})
    try {
      const SplitPattern split(pattern, "tokenizer.json", "pre_tokenizer.pattern.Regex");
      ADD_FAILURE() << pattern << " was accepted";
    } catch (const ConfigError& e) {
      const std::string message = e.what();
      EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
      EXPECT_NE(message.find("pre_tokenizer.pattern.Regex"), std::string::npos) << message;
      EXPECT_NE(message.find(pattern), std::string::npos) << message;
    }
}

}  // namespace
}  // namespace sextant
