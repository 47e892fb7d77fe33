// The normalizer and the pre-tokenizer of a tokenizer.json, as steps, and what is known of them all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/pre_tokenizer.hpp"
#include "runtime/data/text_normalizer.hpp"
#include "runtime/data/text_pipeline.hpp"
#include "runtime/data/tokenizer_file.hpp"

namespace sextant {

struct TokenizerSteps {
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool bytes =
      false;  // ends with a byte-level step, which is left out: pieces are bytes, not GPT-2's letters
  bool letters = false;        // pieces are spelled in GPT-2's letters
  bool restores_text = false;  // all steps leave every byte of the text where it is
  std::string mark;            // what stands for a space, where it is replaced
  bool prefix = false;         // a text is given a space to begin with
  CutRule cut = CutRule::nowhere;
};

// `letters`: a byte-level step at the end is kept, and spells pieces in GPT-2's letters. Throws ConfigError, naming what is not
// known.
TokenizerSteps read_tokenizer_steps(const TokenizerFile&, const nlohmann::json& root, bool letters);

}  // namespace sextant
