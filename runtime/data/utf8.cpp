#include "runtime/data/utf8.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace sextant {
namespace {

// Bytes of the sequence at `at`, and whether they are a character; an ill-formed part is at least one byte.
struct Sequence {
  std::size_t bytes;
  bool valid;
};

Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  unsigned char low = 0x80, high = 0xbf;  // of the second byte; the others have the whole range
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xbf)
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return {i, false};
  return {length, true};
}

}  // namespace

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {  // most text is ASCII
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if (word & 0x8080808080808080U) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Sequence s = sequence_at(text, at);
    if (!s.valid) return at;
    at += s.bytes;
  }
  return at;
}

Utf8Character utf8_character(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += "\xef\xbf\xbd";
    text.remove_prefix(sequence_at(text, 0).bytes);
  }
  return out;
}

}  // namespace sextant
