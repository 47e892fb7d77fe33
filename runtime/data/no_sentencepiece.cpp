#include "core/base/error.hpp"
#include "runtime/data/sentencepiece_tokenizer.hpp"

namespace sextant {

bool sentencepiece_available() { return false; }

Tokenizer parse_sentencepiece(std::string_view, const std::string& file) {
  throw ConfigError(Problem{
      file, "", "a sentencepiece model", "tokenizer.json, tiktoken ranks, or bytes",
      "this sextant was built without sentencepiece: install libsentencepiece-dev and build it again"});
}

}  // namespace sextant
