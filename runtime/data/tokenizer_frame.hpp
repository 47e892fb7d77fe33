// What stands around a document: which tokens begin and end a text, as tokenizer_config.json and the post-processor of
// tokenizer.json say.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/tokenizer.hpp"
#include "runtime/data/tokenizer_file.hpp"
#include "runtime/data/tokenizer_vocabulary.hpp"

namespace sextant {

// Fills bos, eos, their names and bos_in_front. `config` is null without a tokenizer_config.json. Throws ConfigError.
void read_tokenizer_frame(const TokenizerFile&, const nlohmann::json& root, const nlohmann::json& config,
                          const TokenizerVocabulary&, TokenizerInfo&);

}  // namespace sextant
