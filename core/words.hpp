// Names have underscores, as JSON keys do; people read blanks.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace sextant {

inline std::string words(std::string_view key) {
  std::string text(key);
  std::ranges::replace(text, '_', ' ');
  return text;
}

}  // namespace sextant
