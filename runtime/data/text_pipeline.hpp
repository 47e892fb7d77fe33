// A tokenizer of Hugging Face's kind out of its parts: find added tokens, normalise, find those that are normalised, cut, and
// encode the pieces. And tiktoken's, which only cuts and encodes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/added_tokens.hpp"
#include "runtime/data/piece_encoder.hpp"
#include "runtime/data/pre_tokenizer.hpp"
#include "runtime/data/text_normalizer.hpp"
#include "runtime/data/tokenizer.hpp"

namespace sextant {

// Where a text may be divided so that both parts alone give the tokens of the whole; who puts a tokenizer together knows.
enum class CutRule : std::uint8_t {
  nowhere,
  between_lines,    // behind a line feed and before an ASCII letter or digit
  behind_one_feed,  // the same, when the line feed stands behind no space
  at_spaces,        // a space between words goes: the text behind is given one
  before_spaces,    // a space between words begins the text behind
};

struct TextPipeline {
  AddedTokens raw;  // found in the text as it is
  TextNormalizer normalizer;
  AddedTokens normalized;  // found in what the normalizer made of the text
  PreTokenizer pre_tokenizer;
  PieceEncoder model;
  PieceEncoder bad_bytes;  // of what is no UTF-8; without it U+FFFD stands there
  Tokenizer::Decode decode;
  CutRule cut = CutRule::nowhere;
};

Tokenizer make_tokenizer(TokenizerInfo, TextPipeline);

// Texts by id, one behind the other; `drops_space`: the first blank goes.
Tokenizer::Decode decode_texts(std::vector<std::string> texts, bool drops_space);

}  // namespace sextant
