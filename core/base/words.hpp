// Spellings of names: with underscores, as JSON keys have them, or with blanks, as people read them; in small letters; the
// place of one among others, and its parts.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace sextant {

inline std::string words(std::string_view key) {
  std::string text(key);
  std::ranges::replace(text, '_', ' ');
  return text;
}

inline std::string lower(std::string_view name) {
  std::string text(name);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Letters and digits alone, in small letters: what is left of a name however people write it.
inline std::string plain_word(std::string_view name) {
  std::string text;
  for (const char c : name)
    if (const auto u = static_cast<unsigned char>(c); std::isalnum(u) != 0)
      text += static_cast<char>(std::tolower(u));
  return text;
}

// "a, b or c"
inline std::string any_of_words(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return text;
}

// "a, b and 7 more": at most so many of them, or all where one alone would be left.
inline std::string first_words(const std::vector<std::string>& words, std::size_t most,
                               std::string_view separator = ", ") {
  const std::size_t shown = words.size() > most + 1 ? most : words.size();
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) (text += i == 0 ? "" : separator) += words[i];
  return shown < words.size() ? text + " and " + std::to_string(words.size() - shown) + " more" : text;
}

// -1: none of them.
int place_among(const auto& names, std::string_view text) {
  const auto at = std::find(names.begin(), names.end(), text);
  return at == names.end() ? -1 : static_cast<int>(at - names.begin());
}

// One more than there are separators; they may be empty.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (std::size_t begin = 0;;) {
    const auto end = text.find(separator, begin);
    out.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return out;
    begin = end + 1;
  }
}

}  // namespace sextant
