// Are these still the bytes that were written? A 128-bit digest (XXH3, github.com/Cyan4973/xxHash): finds accidents at
// memory speed, and does not resist anyone who wants to deceive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sextant {

std::string digest(std::span<const std::byte>);  // 32 hexadecimal digits
inline std::string digest(std::string_view text) { return digest(std::as_bytes(std::span(text))); }

// Its first eight digits.
std::uint32_t short_digest(std::string_view text);

// The same of bytes that come piece by piece.
class Digest {
 public:
  Digest();
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  void add(std::span<const std::byte>);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  std::string text() const;  // of everything so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sextant
