// What a tokenizer.json may not say: each is refused with file, key, value and what was expected.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "runtime/data/bpe_tokenizer.hpp"

namespace sextant {
namespace {

using nlohmann::json;

json family(const std::string& name) {
  json j;
  std::ifstream(std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/families/" + name + ".json") >> j;
  return j;
}

std::string answer(const std::string& text) {
  try {
    parse_tokenizer_json(text, "some/tokenizer.json");
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "accepted";
}

// One field of a good file is another.
struct Change {
  const char* file;
  const char* pointer;
  json value;
  std::vector<std::string> words;  // of the refusal; none: it is accepted
};

void PrintTo(const Change& c, std::ostream* out) { *out << c.file << c.pointer << " " << c.value; }

class TokenizerRefusal : public testing::TestWithParam<Change> {};

TEST_P(TokenizerRefusal, NamesFileKeyAndValue) {
  const Change& change = GetParam();
  json j = family(change.file);
  ASSERT_EQ(answer(j.dump()), "accepted");  // the control
  j[json::json_pointer(change.pointer)] = change.value;
  const std::string message = answer(j.dump());
  if (change.words.empty()) {
    EXPECT_EQ(message, "accepted");
    return;
  }
  EXPECT_NE(message.find("some/tokenizer.json"), std::string::npos) << message;
  for (const std::string& word : change.words)
    EXPECT_NE(message.find(word), std::string::npos) << word << " in " << message;
}

json step(const char* type, json more = json::object()) {
  more["type"] = type;
  return more;
}
json nested(int depth, const char* list) {
  json inner = step("Sequence", {{list, json::array()}});
  for (int i = 0; i < depth; ++i) inner = step("Sequence", {{list, json::array({inner})}});
  return inner;
}

const json kRegex = {{"Regex", "a"}};

INSTANTIATE_TEST_SUITE_P(
    Fields, TokenizerRefusal,
    testing::Values(
        Change{"qwen2",
               "/normalizer",
               step("Precompiled", {{"precompiled_charsmap", "AAAA"}}),
               {"normalizer.type", "Precompiled", "tokenizer.model"}},
        Change{"qwen2", "/normalizer", step("Nmt"), {"normalizer.type", "Nmt"}},
        Change{"qwen2", "/normalizer", step("BertNormalizer"), {"normalizer.type", "BertNormalizer", "NFC"}},
        Change{"qwen2", "/normalizer", step("nfc"), {"normalizer.type", "\"nfc\""}},
        Change{"qwen2", "/normalizer", 3, {"normalizer", "3"}},
        Change{"qwen2", "/normalizer", json::object(), {"normalizer.type", "missing"}},
        Change{"qwen2", "/normalizer", step("Sequence"), {"normalizer.normalizers", "missing"}},
        Change{"qwen2",
               "/normalizer",
               step("Sequence", {{"normalizers", {step("NFC"), step("Nmt")}}}),
               {"normalizer.normalizers[1].type", "Nmt"}},
        Change{"qwen2", "/normalizer", nested(3, "normalizers"), {}},
        Change{"qwen2", "/normalizer", nested(20, "normalizers"), {"within each other"}},
        Change{"qwen2",
               "/normalizer",
               step("Sequence", {{"normalizers", json(100, step("NFC"))}}),
               {"at most 64 steps"}},
        Change{"qwen2", "/normalizer", step("Prepend"), {"normalizer.prepend", "missing"}},
        Change{"qwen2",
               "/normalizer",
               step("Prepend", {{"prepend", 7}}),
               {"normalizer.prepend", "7", "a string"}},
        Change{
            "qwen2", "/normalizer", step("Strip", {{"strip_left", "yes"}}), {"normalizer.strip_left", "yes"}},
        Change{
            "qwen2", "/normalizer", step("Replace", {{"content", "x"}}), {"normalizer.pattern", "missing"}},
        Change{"qwen2",
               "/normalizer",
               step("Replace", {{"content", "x"}, {"pattern", {{"String", ""}}}}),
               {"normalizer.pattern", "empty"}},
        Change{"qwen2",
               "/normalizer",
               step("Replace", {{"content", "x"}, {"pattern", {{"Regex", "(?<n>a)"}}}}),
               {"normalizer.pattern.Regex", "(?<n>a)"}},
        Change{"qwen2",
               "/normalizer",
               step("Replace", {{"content", 1}, {"pattern", kRegex}}),
               {"normalizer.content", "1"}},
        Change{"qwen2",
               "/pre_tokenizer",
               step("BertPreTokenizer"),
               {"pre_tokenizer.type", "BertPreTokenizer", "ByteLevel"}},
        Change{"qwen2", "/pre_tokenizer", step("UnicodeScripts"), {"pre_tokenizer.type", "UnicodeScripts"}},
        Change{"qwen2",
               "/pre_tokenizer",
               step("FixedLength", {{"length", 3}}),
               {"pre_tokenizer.type", "FixedLength"}},
        Change{"qwen2", "/pre_tokenizer", nested(20, "pretokenizers"), {"within each other"}},
        Change{"qwen2",
               "/pre_tokenizer/pretokenizers/0/behavior",
               "Shuffled",
               {"pretokenizers[0].behavior", "Shuffled", "MergedWithNext"}},
        Change{"qwen2",
               "/pre_tokenizer/pretokenizers/0/behavior",
               nullptr,
               {"pretokenizers[0].behavior", "null"}},
        Change{"qwen2", "/pre_tokenizer/pretokenizers/0/invert", 1, {"pretokenizers[0].invert", "1"}},
        Change{"qwen2", "/pre_tokenizer/pretokenizers/0/pattern", "a", {"pretokenizers[0].pattern", "Regex"}},
        Change{"qwen2",
               "/pre_tokenizer/pretokenizers/0/pattern",
               {{"String", "a"}, {"Regex", "b"}},
               {"pretokenizers[0].pattern"}},
        Change{"qwen2",
               "/pre_tokenizer/pretokenizers/0/pattern/Regex",
               std::string(20000, 'a'),
               {"pattern.Regex", "20000 bytes"}},
        Change{"qwen2",
               "/pre_tokenizer/pretokenizers/0/pattern/Regex",
               std::string(3000, '('),
               {"pattern.Regex", "too deeply"}},
        Change{"qwen2",
               "/pre_tokenizer/pretokenizers/1/add_prefix_space",
               "no",
               {"pretokenizers[1].add_prefix_space", "no"}},
        Change{"mistral_v3",
               "/pre_tokenizer/replacement",
               "__",
               {"pre_tokenizer.replacement", "__", "one character"}},
        Change{
            "mistral_v3", "/pre_tokenizer/replacement", "", {"pre_tokenizer.replacement", "one character"}},
        Change{
            "mistral_v3", "/pre_tokenizer/prepend_scheme", "last", {"pre_tokenizer.prepend_scheme", "last"}},
        Change{"mistral_v3", "/pre_tokenizer/add_prefix_space", false, {"pre_tokenizer.add_prefix_space"}},
        Change{"qwen2", "/model/type", "Unigram", {"model.type", "Unigram", "tokenizer.model"}},
        Change{"qwen2", "/model/type", "WordPiece", {"model.type", "WordPiece"}},
        Change{"qwen2", "/model/type", 1, {"model.type", "1"}},
        Change{"qwen2", "/model/dropout", 0.1, {"model.dropout", "0.1"}},
        Change{"qwen2", "/model/dropout", "none", {"model.dropout", "none"}},
        Change{"qwen2", "/model/dropout", 0.0, {}},
        Change{"qwen2", "/model/ignore_merges", "true", {"model.ignore_merges"}},
        Change{"llama2", "/model/unk_token", "<nothing>", {"model.unk_token", "<nothing>"}},
        Change{"llama2", "/model/unk_token", nullptr, {}},
        Change{"words", "/model/unk_token", nullptr, {"model.unk_token", "would be lost"}},
        Change{"words", "/model/merges/0", json::array({"a", "b"}), {"model.merges[0]", "##"}},
        Change{"qwen2", "/model/vocab", json::array(), {"model.vocab", "an object"}},
        Change{"qwen2", "/model/vocab/a", "seven", {"model.vocab", "seven"}},
        Change{"qwen2", "/model/vocab/a", 1.5, {"model.vocab", "1.5"}},
        Change{"qwen2", "/model/vocab/a", 1e300, {"model.vocab", "1e+300"}},
        Change{"qwen2", "/model/vocab/a", 18446744073709551615U, {"model.vocab", "18446744073709551615"}},
        Change{"qwen2", "/model/vocab/a", 16000000, {"model.vocab", "16000000"}},
        Change{"qwen2", "/model/vocab/a", 1, {"model.vocab", "an id of its own"}},
        Change{"qwen2", "/model/vocab/", 5000, {"model.vocab", "an empty token"}},
        Change{"qwen2", "/model/merges/0", json::array({"a"}), {"model.merges[0]", "two tokens"}},
        Change{"qwen2", "/model/merges/0", "a b c", {"model.merges[0]", "two tokens"}},
        Change{"qwen2", "/model/merges/0", json::array({"a", "nowhere"}), {"model.merges[0]", "nowhere"}},
        Change{"qwen2", "/added_tokens", json::object(), {"added_tokens", "an array"}},
        Change{"qwen2", "/added_tokens/0", "x", {"added_tokens[0]", "an object"}},
        Change{"qwen2", "/added_tokens/0/id", -1, {"added_tokens[0].id", "-1"}},
        Change{"qwen2", "/added_tokens/0/id", 5000, {"added_tokens", "id 5000", "the next that is free"}},
        Change{"qwen2", "/added_tokens/0/content", "a", {"added_tokens", "as in model.vocab"}},
        Change{"qwen2",
               "/added_tokens/0/content",
               std::string(5000, 'x'),
               {"added_tokens[0].content", "5000 bytes"}},
        Change{"qwen2", "/added_tokens/1/content", "<|endoftext|>", {"added_tokens[1]", "once"}},
        Change{"qwen2", "/added_tokens/0/special", "yes", {"added_tokens[0].special", "yes"}},
        Change{"qwen2", "/post_processor", step("BertProcessing"), {"post_processor.type", "BertProcessing"}},
        Change{"qwen2", "/post_processor", step("TemplateProcessing"), {"post_processor.single", "missing"}},
        Change{"llama2", "/post_processor/single/0", 5, {"post_processor.single[0]", "5"}}));

TEST(TokenizerRefusals, OfDeepAndDamagedFiles) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_NE(answer(deep), "accepted");
  json empty = family("qwen2");
  empty.erase("normalizer");
  const std::string whole = empty.dump();
  const std::string with_deep = R"({"normalizer": )" + deep + "," + whole.substr(1);
  EXPECT_NE(answer(with_deep).find("levels deep"), std::string::npos) << answer(with_deep);
  const std::string deep_merge =
      R"({"model": {"vocab": {"a": 0}, "unk_token": "a", "merges": [)" + deep + "]}}";
  EXPECT_NE(answer(deep_merge).find("levels deep"), std::string::npos) << answer(deep_merge);
  for (std::size_t length = 0; length < whole.size(); length += whole.size() / 50)
    EXPECT_NE(answer(whole.substr(0, length)), "accepted") << length;
}

// What else of a tokenizer is JSON: each is named, with the file to give instead.
TEST(TokenizerRefusals, OfOtherFilesInJson) {
  const std::pair<const char*, const char*> kFiles[] = {
      {R"({"config": {"pattern": "a", "version": "v3"}, "vocab": [{"rank": 0, "token_bytes": "AA=="}]})",
       "tekken.json"},
      {R"({"!": 0, "a": 1})", "vocab.json"},
      {R"({"tokenizer_class": "Qwen2Tokenizer", "bos_token": null})", "tokenizer_config.json"}};
  for (const auto& [text, what] : kFiles) {
    const std::string message = answer(text);
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_NE(message.find("expected a tokenizer.json"), std::string::npos) << message;
  }
  EXPECT_NE(answer("{}").find("model: found missing"), std::string::npos) << answer("{}");
}

// Ranks say neither pattern nor special tokens. Llama 3's are known, by their number; other published files have others.
TEST(TokenizerRefusals, OfRanksThatAreNotLlama3s) {
  const auto ranks = [](std::size_t n) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < n; ++i) {
      // 256 tokens of a byte, then of three.
      std::string word = i < 256 ? std::string() + kDigits[i / 4] + kDigits[i % 4 * 16] + "=="
                                 : std::string() + kDigits[i >> 18 & 63] + kDigits[i >> 12 & 63] +
                                       kDigits[i >> 6 & 63] + kDigits[i & 63];
      text += word + " " + std::to_string(i) + "\n";
    }
    try {
      parse_tiktoken_ranks(text, "some/file.tiktoken");
    } catch (const ConfigError& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(ranks(300), "accepted");
  EXPECT_EQ(ranks(128000), "accepted");
  for (const std::size_t n : {100256U, 151643U, 199998U}) {
    const std::string message = ranks(n);
    EXPECT_NE(message.find(std::to_string(n) + " ranks, expected the 128000 of Llama 3"), std::string::npos)
        << message;
    EXPECT_NE(message.find("name the model's tokenizer.json"), std::string::npos) << message;
  }
}

TEST(TokenizerRefusals, SayWhichByteHasNoToken) {
  json j = family("gpt2");
  j["model"]["merges"] = json::array();
  j["model"]["vocab"].erase("a");
  j.erase("added_tokens");
  EXPECT_NE(answer(j.dump()).find("byte 0x61"), std::string::npos) << answer(j.dump());
}

}  // namespace
}  // namespace sextant
