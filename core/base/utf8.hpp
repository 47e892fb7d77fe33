// Text in UTF-8, character by character.
#pragma once

#include <string>

namespace sextant {

// `code` is a character of Unicode: below 0x110000, and no surrogate.
inline void append_utf8(std::string& out, char32_t code) {
  const auto add = [&](char32_t byte) { out += static_cast<char>(byte); };
  const auto rest = [&](int shift) { add(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    rest(0);
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    rest(6);
    rest(0);
  } else {
    add(0xf0 | code >> 18);
    rest(12);
    rest(6);
    rest(0);
  }
}

}  // namespace sextant
