// The digest that names data: xxHash XXH3-128, as 32 hexadecimal digits (Yann Collet, xxhash.com). It finds damage and
// mix-ups, not forgery.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sextant {

class DataDigest {
 public:
  DataDigest();
  ~DataDigest();
  DataDigest(DataDigest&&) noexcept;
  DataDigest& operator=(DataDigest&&) noexcept;
  void add(std::string_view bytes);
  void add(std::span<const std::byte> bytes);
  std::string text() const;  // of everything so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string digest_of(std::string_view bytes);

}  // namespace sextant
