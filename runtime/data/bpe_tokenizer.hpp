// Byte-level BPE as a tokenizer: split by a pattern, look the whole piece up, merge what is left. And its two files:
// tokenizer.json of Hugging Face's tokenizers and the ranks that Meta ships with Llama 3 (the format of tiktoken).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/byte_pairs.hpp"
#include "runtime/data/split_pattern.hpp"
#include "runtime/data/tokenizer.hpp"

namespace sextant {

struct BytePairModel {
  std::vector<std::string> tokens;  // bytes by id; special tokens and holes are empty
  std::vector<PairMerge> merges;
  SplitPattern split;
  bool whole_pieces = false;  // a piece that is a token is not merged at all
};
// Throws ConfigError, naming info.source, when one of the 256 bytes has no token.
Tokenizer make_bpe_tokenizer(TokenizerInfo, BytePairModel);

// `file` names the source in messages; `config` is the text of a tokenizer_config.json beside it, or empty.
Tokenizer parse_tokenizer_json(std::string_view text, const std::string& file, std::string_view config = {});
// Special tokens are Llama 3's 256, behind the ranks.
Tokenizer parse_tiktoken_ranks(std::string_view text, const std::string& file);

}  // namespace sextant
