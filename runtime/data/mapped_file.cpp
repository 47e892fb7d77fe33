#include "runtime/data/mapped_file.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.hpp"

namespace sextant {

MappedFile::MappedFile(const std::filesystem::path& path, std::size_t expected_bytes) {
  const auto refuse = [&](std::string found, std::string expected, std::string hint) {
    throw ConfigError(Problem{path.string(), "", std::move(found), std::move(expected), std::move(hint)});
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    refuse("", errno == ENOENT ? "no such file" : fmt::format("cannot be read: {}", std::strerror(errno)),
           "");
  struct stat status {};
  void* address = MAP_FAILED;
  const bool known = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(known ? status.st_size : 0);
  if (known && size == expected_bytes && size > 0)
    address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (!known) refuse("no regular file", "a file of tokens", "");
  if (size != expected_bytes)
    refuse(fmt::format("{} bytes", size), fmt::format("{} bytes, as the index says", expected_bytes),
           size < expected_bytes ? "it was cut, or belongs to another index" : "it belongs to another index");
  if (size == 0) return;
  if (address == MAP_FAILED) refuse("", fmt::format("cannot be mapped: {}", std::strerror(error)), "");
  data_ = static_cast<const std::byte*>(address);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}
MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace sextant
