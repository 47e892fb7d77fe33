// A file of data as a range of memory that is read only when it is touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "core/base/mapped_range.hpp"

namespace sextant {

class MappedFile {
 public:
  // Throws ConfigError when it cannot be read, or has not `expected_bytes`.
  MappedFile(const std::filesystem::path&, std::size_t expected_bytes);
  std::span<const std::byte> bytes() const { return range_.bytes(); }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(range_.bytes().data());
  }  // a map begins at a page

 private:
  MappedRange range_;
};

}  // namespace sextant
