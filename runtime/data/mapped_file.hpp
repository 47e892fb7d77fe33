// A file of data as a range of memory that is read only when it is touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace sextant {

class MappedFile {
 public:
  // Throws ConfigError when it cannot be read, or has not `expected_bytes`.
  MappedFile(const std::filesystem::path&, std::size_t expected_bytes);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }  // a map begins at a page

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sextant
