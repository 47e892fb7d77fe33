// Spellings of names: with underscores, as JSON keys have them, or with blanks, as people read them; in small letters.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

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

}  // namespace sextant
