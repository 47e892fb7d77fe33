// GPT-2's alphabet for bytes (encoder.py, bytes_to_unicode): printable Latin-1 bytes stand for themselves, the others for U+0100
// and on. Byte-level vocabularies are spelled in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sextant {

std::string to_byte_letters(std::string_view bytes);
std::optional<std::string> from_byte_letters(
    std::string_view letters);  // none when another character is among them

}  // namespace sextant
