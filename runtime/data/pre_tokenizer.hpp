// How a tokenizer cuts a text into the pieces within which its model works: the pre-tokenizers of Hugging Face's tokenizers, one
// after the other. Values.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/split_pattern.hpp"

namespace sextant {

// What becomes of the matches of a split.
enum class SplitBehavior : std::uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous
};

// The pieces of a text, and those that are no part of it any more. One thread's.
struct TextPieces {
  std::vector<std::string_view> now, next;
  std::deque<std::string> made;
  const char* start = nullptr;  // a piece that begins here is the beginning of the whole text
  std::vector<TextMatch> matches;
};

using PreTokenizerStep = std::function<void(TextPieces&)>;

enum class MetaspacePrefix : std::uint8_t { always, first, never };

// `inverted`: what lies between matches is what was meant.
PreTokenizerStep split_step(SplitPattern pattern, SplitBehavior behavior, bool inverted);
PreTokenizerStep split_step(std::function<bool(char32_t)> characters, SplitBehavior behavior);
PreTokenizerStep metaspace_step(std::string mark, MetaspacePrefix prefix, bool split);
PreTokenizerStep prefix_space_step();  // in front of every piece that does not begin with one
PreTokenizerStep byte_letters_pieces_step();

class PreTokenizer {
 public:
  void add(PreTokenizerStep step) { steps_.push_back(std::move(step)); }
  // The pieces, in `pieces.now`; no piece is empty. `at_start`: `text` is the beginning of the whole text.
  void apply(std::string_view text, bool at_start, TextPieces& pieces) const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace sextant
