// The regular expression that cuts text into the pieces within which byte-level BPE merges. The published patterns are
// written for Oniguruma and Rust's regex; PCRE2 reads them with the same meaning, except that its \s takes U+180E for
// a space (it was one before Unicode 6.3), which is mended here, and that letters and digits are those of the Unicode
// version that PCRE2 was built with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

// Of GPT-2 (github.com/openai/gpt-2, encoder.py) and of Llama 3 (github.com/meta-llama/llama3, tokenizer.py).
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class SplitPattern {
 public:
  // Throws ConfigError, in the name of `file` and `key`, when it is no regular expression.
  SplitPattern(std::string_view pattern, const std::string& file, const std::string& key);

  // Appends every match and whatever lies between matches; together they are the text. Bytes that are no UTF-8 are
  // pieces of their own. Safe from several threads at once.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // Where matching the text before and the text behind gives what matching both together gives.
  enum class Parts : std::uint8_t {
    unknown,
    between_lines,    // behind a line feed and before what is no space
    behind_one_feed,  // the same, when the line feed stands behind no space
  };
  Parts parts() const { return parts_; }

 private:
  struct Code;
  void split_valid(std::string_view text, std::vector<std::string_view>& pieces) const;
  std::shared_ptr<const Code> code_;
  Parts parts_ = Parts::unknown;
};

}  // namespace sextant
