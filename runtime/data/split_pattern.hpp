// A regular expression of a tokenizer, by which text is cut into the pieces within which BPE merges, or replaced. Written for
// Oniguruma (oniguruma_pattern.hpp), matched by PCRE2; letters and digits are those of the Unicode version that PCRE2 was built
// with.
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

// Bytes of a text; an empty match is a place.
struct TextMatch {
  std::size_t begin = 0, end = 0;
};

class SplitPattern {
 public:
  // Throws ConfigError, in the name of `file` and `key`, when it is no regular expression or cannot be followed.
  SplitPattern(std::string_view pattern, const std::string& file, const std::string& key);

  // Appends every match and whatever lies between matches; together they are the text, which must be UTF-8. Safe from several
  // threads at once. Throws BackendError, naming file and key, when a match would take too much time or memory.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;
  // The matches alone, in order; of those of nothing none stands at the end of the one before.
  void find_all(std::string_view text, std::vector<TextMatch>& matches) const;

 private:
  struct Code;
  template <class Found>
  void each_match(std::string_view text, const Found& found) const;
  std::shared_ptr<const Code> code_;
};

}  // namespace sextant
