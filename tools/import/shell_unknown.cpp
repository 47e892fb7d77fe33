#include "tools/import/shell_unknown.hpp"

namespace sextant {

std::string unknown(std::string_view what) { return kUnknownBegin + std::string(what) + kUnknownEnd; }

bool has_unknown(std::string_view word) { return word.find(kUnknownBegin) != word.npos; }

std::string without_unknown(std::string_view word) {
  std::string text;
  int depth = 0;
  for (const char c : word) {
    if (c == kUnknownBegin) ++depth;
    if (depth == 0) text += c;
    if (c == kUnknownEnd && depth > 0) --depth;
  }
  return text;
}

std::string shown_unknown(std::string_view word) {
  std::string text;
  for (const char c : word)
    if (c != kUnknownBegin && c != kUnknownEnd) text += c;
  return text;
}

}  // namespace sextant
