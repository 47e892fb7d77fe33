// The bytes of an open file as a range of memory, read only when it is touched. What the system has no other way to tell then
// (the disk fails, or somebody cuts the file: SIGBUS) ends the process with a message that names the file, and exit code 3.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace sextant {

class MappedRange {
 public:
  MappedRange() = default;
  // Of the first `size` bytes, size > 0; empty when the system refuses (errno says why). `path` is for messages.
  MappedRange(int fd, std::size_t size, const std::filesystem::path& path);
  ~MappedRange();
  MappedRange(MappedRange&&) noexcept;
  MappedRange& operator=(MappedRange&&) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// What has been read of a mapped file need not stay in this process's memory: the whole pages within are let go, and come
// back when they are touched.
void let_go(std::span<const std::byte> mapped);

}  // namespace sextant
