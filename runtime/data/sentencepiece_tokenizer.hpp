// Tokenizers of LLaMA 1 and 2. An optional part: one of two sources holds it (no_sentencepiece.cpp refuses and says why).
#pragma once

#include <string>
#include <string_view>

#include "runtime/data/tokenizer.hpp"

namespace sextant {

bool sentencepiece_available();
Tokenizer parse_sentencepiece(std::string_view model, const std::string& file);

}  // namespace sextant
