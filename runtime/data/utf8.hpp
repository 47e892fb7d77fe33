// Is this text UTF-8, and where does it cease to be? Well-formed as Unicode 15, table 3-7 has it: no surrogates, no
// overlong forms, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/utf8.hpp"

namespace sextant {

std::size_t valid_utf8_prefix(std::string_view text);  // bytes; text.size() when all of it is

struct Utf8Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};
// The character at `at` of a text that is UTF-8.
Utf8Character utf8_character(std::string_view text, std::size_t at);

// With U+FFFD in place of every maximal part of an ill-formed sequence (Unicode's recommended practice).
std::string replace_invalid_utf8(std::string_view text);

}  // namespace sextant
