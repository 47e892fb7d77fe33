#include "runtime/data/tokenizer.hpp"

#include "core/error.hpp"

namespace sextant {

std::string_view name(TokenizerKind kind) {
  switch (kind) {
    case TokenizerKind::bytes:
      return "bytes";
    case TokenizerKind::sentencepiece:
      return "sentencepiece";
    case TokenizerKind::bpe_json:
      return "tokenizer.json";
    case TokenizerKind::tiktoken:
      return "tiktoken";
  }
  return "";
}

Tokenizer load_tokenizer(const std::string& file_or_name) {
  if (file_or_name == "bytes") return byte_tokenizer();
  throw ConfigError(Problem{file_or_name, "", "a tokenizer file", "bytes", ""});
}

}  // namespace sextant
