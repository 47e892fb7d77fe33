// From pieces of a text to their tokens: byte-pair encoding over bytes, as of GPT-2 and Llama 3, or over characters, as of LLaMA 2,
// Mistral and Gemma. As models::BPE of Hugging Face's tokenizers does it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/data/byte_pairs.hpp"
#include "runtime/data/piece_cache.hpp"

namespace sextant {

// One thread's.
struct PieceScratch {
  PieceCache cache;
  std::vector<std::int32_t> row;
};

// Appends. Safe from several threads at once, each with a scratch of its own, which no other encoder uses.
using PieceEncoder = std::function<void(std::span<const std::string_view> pieces, PieceScratch& scratch,
                                        std::vector<std::int32_t>& out)>;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

struct BytePairModel {
  std::vector<std::int32_t> bytes;  // tokens of the 256 bytes
  std::vector<PairMerge> merges;
  TokenIds whole;  // pieces that are a token and are not merged at all
};
PieceEncoder byte_pair_encoder(BytePairModel);

struct CharacterPairModel {
  TokenIds ids;  // by their spelling
  std::vector<PairMerge> merges;
  TokenIds whole;
  std::optional<std::int32_t> unknown;             // of characters that have no token
  bool fuse_unknown = false;                       // one for several in a row
  std::vector<std::optional<std::int32_t>> bytes;  // empty, or what characters without a token are spelled in
  std::string prefix, suffix;  // of a character that is not a piece's first, that is its last
  std::string mark;            // how the model spells a space; may be empty
};
// Whether no token reaches over the beginning of a word, so that words are encoded apart from each other.
bool parts_at_marks(const CharacterPairModel&);
PieceEncoder character_pair_encoder(CharacterPairModel);

}  // namespace sextant
