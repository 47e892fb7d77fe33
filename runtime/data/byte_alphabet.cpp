#include "runtime/data/byte_alphabet.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "runtime/data/utf8.hpp"

namespace sextant {
namespace {

const std::array<std::string, 256>& letters_of_bytes() {
  static const std::array<std::string, 256> letters = [] {
    std::array<std::string, 256> made;
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      append_utf8(made[b], printable ? b : next++);
    }
    return made;
  }();
  return letters;
}

const std::map<std::string, char, std::less<>>& bytes_of_letters() {
  static const auto alphabet = [] {
    std::map<std::string, char, std::less<>> made;
    for (std::size_t b = 0; b < 256; ++b) made.emplace(letters_of_bytes()[b], static_cast<char>(b));
    return made;
  }();
  return alphabet;
}

}  // namespace

std::string to_byte_letters(std::string_view bytes) {
  std::string letters;
  letters.reserve(bytes.size() + bytes.size() / 4);
  for (const char b : bytes) letters += letters_of_bytes()[static_cast<unsigned char>(b)];
  return letters;
}

std::optional<std::string> from_byte_letters(std::string_view letters) {
  std::string bytes;
  while (!letters.empty()) {
    const std::size_t length = static_cast<unsigned char>(letters[0]) < 0x80 ? 1 : 2;
    const auto found = bytes_of_letters().find(letters.substr(0, length));
    if (found == bytes_of_letters().end()) return {};
    bytes += found->second;
    letters.remove_prefix(std::min(length, letters.size()));
  }
  return bytes;
}

}  // namespace sextant
