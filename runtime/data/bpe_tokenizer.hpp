// Byte-pair tokenizers by their two files: tokenizer.json of Hugging Face's tokenizers and the ranks that Meta ships with Llama 3
// (the format of tiktoken).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/tokenizer.hpp"

namespace sextant {

// `file` names the source in messages; `config` is the text of a tokenizer_config.json beside it, or empty. Throws ConfigError
// with file, key and value where the file is wrong, or asks for what would change the ids and is not known.
Tokenizer parse_tokenizer_json(std::string_view text, const std::string& file, std::string_view config = {});
// Special tokens are Llama 3's 256, behind the ranks.
Tokenizer parse_tiktoken_ranks(std::string_view text, const std::string& file);

// The tokens of the 256 bytes; `tokens` are bytes by id. Throws ConfigError, naming `file`, when one has none.
std::vector<std::int32_t> tokens_of_bytes(const std::vector<std::string>& tokens, const std::string& file);

}  // namespace sextant
