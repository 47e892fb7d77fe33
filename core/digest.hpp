// Are these still the bytes that were written? A 128-bit digest (XXH3, github.com/Cyan4973/xxHash): finds accidents at
// memory speed, and does not resist anyone who wants to deceive.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace sextant {

std::string digest(std::span<const std::byte>);  // 32 hexadecimal digits
inline std::string digest(std::string_view text) { return digest(std::as_bytes(std::span(text))); }

}  // namespace sextant
