// The vocabulary, the merges and the added tokens of a tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/added_tokens.hpp"
#include "runtime/data/piece_encoder.hpp"
#include "runtime/data/text_normalizer.hpp"
#include "runtime/data/tokenizer_file.hpp"

namespace sextant {

struct TokenizerVocabulary {
  struct Added {
    AddedToken token;
    bool normalized = false;  // found in what the normalizer made of a text
  };
  TokenIds ids;  // of the model, by their spelling in the file
  std::vector<Added> added;
  std::unordered_map<std::string, std::int32_t> added_ids;  // by their contents
  std::int64_t size = 0;                                    // ids are below it
};

// Both throw ConfigError.
TokenizerVocabulary read_tokenizer_vocabulary(const TokenizerFile&, const nlohmann::json& root,
                                              const nlohmann::json& model);
// `prefix` is the model's continuing_subword_prefix.
std::vector<PairMerge> read_tokenizer_merges(const TokenizerFile&, const nlohmann::json& model,
                                             const TokenizerVocabulary&, const std::string& prefix);
// Those that are found in a text as it is, or in what the normalizer made of it.
AddedTokens added_tokens_of(const TokenizerFile&, const TokenizerVocabulary&, const TextNormalizer&,
                            bool normalized);

}  // namespace sextant
