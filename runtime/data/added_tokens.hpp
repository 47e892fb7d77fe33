// Tokens that are found in a text before it is cut: at every place the longest, from left to right, as the tokenizers library
// finds its added tokens. Special ones are text here (text is text): they are found, so that none begins within them, and left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sextant {

struct AddedToken {
  std::string content;  // as it stands in the text that is searched
  std::int32_t id = 0;
  bool special = false;                 // left in the text
  bool single_word = false;             // only between what are no words
  bool lstrip = false, rstrip = false;  // takes the white space before, behind
};

class AddedTokens {
 public:
  struct Part {
    std::string_view text;
    std::int32_t id = -1;  // -1: text
  };

  // Contents are unlike each other and not empty.
  explicit AddedTokens(std::vector<AddedToken> tokens = {});

  bool empty() const { return !any_; }  // none that would be taken out of a text
  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // Appends. `text` is UTF-8; parts of text are not empty.
  void split(std::string_view text, std::vector<Part>& parts) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> next;  // by byte, ascending
    std::int32_t token = -1;
  };
  std::int32_t child(std::int32_t node, char byte) const;
  std::int32_t longest_at(std::string_view text, std::size_t at) const;  // -1: none

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> first_;  // node of each first byte, -1: none
  bool any_ = false;
};

}  // namespace sextant
