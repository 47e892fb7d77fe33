// Bounded time and memory: very long runs, patterns that backtrack without end, marks without end.
#include <chrono>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "runtime/data/added_tokens.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/byte_pairs.hpp"
#include "runtime/data/piece_cache.hpp"
#include "runtime/data/split_pattern.hpp"
#include "runtime/data/tokenizer.hpp"
#include "runtime/data/unicode_forms.hpp"

namespace sextant {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kFamilyFolder = std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/families/";

std::string repeated(std::string_view what, std::size_t bytes) {
  std::string text;
  text.reserve(bytes + what.size());
  while (text.size() < bytes) text += what;
  return text;
}

class LongRuns : public testing::TestWithParam<const char*> {};

// 2 MB of one character, of each kind: a fraction of a second, where anything quadratic takes many minutes (5e11 steps over
// characters of three bytes).
TEST_P(LongRuns, AreEncoded) {
  const Tokenizer t = load_tokenizer(kFamilyFolder + GetParam() + ".json");
  constexpr std::size_t kBytes = 2 << 20;
  for (const char* what : {"a", " ", "\n", "1", "!", "\u5929", "\u0301", "\u2581"}) {
    const std::string text = repeated(what, kBytes);
    const auto begin = std::chrono::steady_clock::now();
    const Ids ids = t.encode(text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_FALSE(ids.empty()) << json(what);
    EXPECT_LT(took.count(), 60) << json(what);
    if (t.info().restores_text) {
      EXPECT_EQ(t.decode(ids), text) << json(what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LongRuns, testing::Values("llama2", "gemma2", "qwen3", "gpt2"),
                         [](const auto& param_info) { return std::string(param_info.param); });

TEST(TokenizerBounds, BacktrackingEndsWithAnError) {
  const SplitPattern hostile("(a+)+b|(a|aa)+c", "some/tokenizer.json", "pre_tokenizer.pattern.Regex");
  std::vector<std::string_view> pieces;
  hostile.split("aaab", pieces);  // the control: it is a pattern
  EXPECT_EQ(pieces.size(), 1U);
  const std::string text(5000, 'a');
  const auto begin = std::chrono::steady_clock::now();
  try {
    hostile.split(text, pieces);
    ADD_FAILURE() << "no limit was met";
  } catch (const BackendError& e) {
    const std::string message = e.what();
    for (const char* word : {"some/tokenizer.json", "pre_tokenizer.pattern.Regex", "5000 bytes", "limit"})
      EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), 60);
}

// Marks in the wrong order, a million of them: sorted, not sifted.
TEST(TokenizerBounds, ManyMarksArePutInOrder) {
  std::string text = "a" + repeated("\u0301\u0323", 4 << 20), out;
  ASSERT_TRUE(to_unicode_form(UnicodeForm::nfd, text, out));
  EXPECT_EQ(out.size(), text.size());
  EXPECT_EQ(out.substr(0, 5), "a\u0323\u0323");
  std::string again;
  EXPECT_FALSE(to_unicode_form(UnicodeForm::nfd, out, again)) << "what is in order stays";
}

TEST(UnicodeForms, KnownPairs) {
  struct Case {
    const char *text, *nfc, *nfd, *nfkc, *nfkd;
  };
  for (const Case& c :
       {Case{"\u00e9", "\u00e9", "e\u0301", "\u00e9", "e\u0301"},
        Case{"e\u0301", "\u00e9", "e\u0301", "\u00e9", "e\u0301"},
        Case{"\u212b", "\u00c5", "A\u030a", "\u00c5", "A\u030a"},
        Case{"\uac01", "\uac01", "\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8"},
        Case{"\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8", "\uac01", "\u1100\u1161\u11a8"},
        Case{"\ufb01\u00b2", "\ufb01\u00b2", "\ufb01\u00b2", "fi2", "fi2"},
        Case{"\u0958", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"},
        Case{"a\u0307\u0323", "\u1ea1\u0307", "a\u0323\u0307", "\u1ea1\u0307", "a\u0323\u0307"},
        Case{"plain", "plain", "plain", "plain", "plain"}}) {
    const auto form = [&](UnicodeForm f) {
      std::string out;
      return to_unicode_form(f, c.text, out) ? out : std::string(c.text);
    };
    EXPECT_EQ(form(UnicodeForm::nfc), c.nfc) << c.text;
    EXPECT_EQ(form(UnicodeForm::nfd), c.nfd) << c.text;
    EXPECT_EQ(form(UnicodeForm::nfkc), c.nfkc) << c.text;
    EXPECT_EQ(form(UnicodeForm::nfkd), c.nfkd) << c.text;
  }
}

TEST(PieceCacheTest, FindsWhatWasKeptAndNothingElse) {
  PieceCache cache;
  EXPECT_FALSE(cache.find("a"));
  const auto name = [](std::size_t i) {
    return "piece" + std::to_string(i * 7919) + std::string(i % 40, 'x');
  };
  for (std::size_t i = 0; i < PieceCache::kMost; ++i) {
    const Ids ids = {static_cast<std::int32_t>(i), -1};
    cache.keep(name(i), std::span(ids).first(1 + i % 2));
  }
  for (std::size_t i = 0; i < PieceCache::kMost; i += 97) {
    const auto found = cache.find(name(i));
    ASSERT_TRUE(found) << i;
    EXPECT_EQ((*found)[0], static_cast<std::int32_t>(i));
    EXPECT_EQ(found->size(), 1 + i % 2);
    EXPECT_FALSE(cache.find(name(i) + "!"));
  }
  const Ids one = {1};
  cache.keep("one more", one);  // and all others are forgotten
  EXPECT_TRUE(cache.find("one more"));
  EXPECT_FALSE(cache.find(name(0)));
  cache.keep("many", Ids(70'000, 1));
  EXPECT_FALSE(cache.find("many")) << "more tokens than a place can count";
  cache.keep("most", Ids(PieceCache::kMostIds, 1));
  EXPECT_EQ(cache.find("most").value().size(), PieceCache::kMostIds) << "control";
  cache.keep(std::string(65, 'y'), one);
  EXPECT_FALSE(cache.find(std::string(65, 'y'))) << "too long to be kept";
}

TEST(AddedTokensTest, TakesTheLongestFromTheLeft) {
  const AddedTokens added({{"ab", 1}, {"abc", 2}, {"bcd", 3}, {"<s>", 4, true}, {"s>x", 5}});
  const auto split = [&](std::string_view text) {
    std::vector<AddedTokens::Part> parts;
    added.split(text, parts);
    std::string all;
    for (const auto& p : parts) all += std::string(p.text) + ":" + std::to_string(p.id) + " ";
    return all;
  };
  EXPECT_EQ(split("xabcdab"), "x:-1 abc:2 d:-1 ab:1 ");
  EXPECT_EQ(split("<s>x"), "<s>x:-1 ") << "nothing begins within a special token, which stays text";
  EXPECT_EQ(split("s>x"), "s>x:5 ");
  EXPECT_EQ(split(""), "");
}

TEST(BytePairsTest, OfTwoMergesOfAPairTheLastCounts) {
  const std::vector<PairMerge> merges = {{0, 1, 0, 2}, {1, 1, 1, 3}, {0, 1, 2, 4}};
  Ids out;
  BytePairs(merges).encode(Ids{0, 1, 1}, out);
  EXPECT_EQ(out, (Ids{0, 3}));
  out.clear();
  BytePairs(std::span(merges).first(2)).encode(Ids{0, 1, 1}, out);
  EXPECT_EQ(out, (Ids{2, 1}));
}

}  // namespace
}  // namespace sextant
