// Texts of any size, and a folder in which data sets are made of them and refused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "runtime/data/data_set.hpp"
#include "runtime/data/prepare.hpp"
#include "tests/support/temp_dir.hpp"

namespace sextant::data_sets {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
constexpr std::int32_t kBos = 256, kEos = 257;

inline std::string golden(const char* file) {
  return std::string(SEXTANT_SOURCE_DIR) + "/tests/golden/tokenizers/" + file;
}

// Prose with lines and paragraphs, some of it not ASCII.
inline std::string prose(std::size_t bytes, unsigned seed) {
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

inline Ids all_tokens(const TokenRow& row) {
  Ids ids(static_cast<std::size_t>(row.tokens()));
  row.read(0, ids);
  return ids;
}

// Documents of a split as texts of the byte tokenizer.
inline std::vector<std::string> documents(const DataSet& data, DataSplit split) {
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

}  // namespace sextant::data_sets
