#include "runtime/checkpoint/file_header.hpp"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.hpp"
#include "core/base/file_descriptor.hpp"

namespace sextant {
namespace {

// Fewer bytes than asked for where the file ends; nothing where it cannot be read.
std::optional<std::string> first_bytes(int fd, std::size_t size) {
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, text.data() + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

}  // namespace

std::string file_header(const std::filesystem::path& path) {
  const auto refuse = [&] {
    throw BackendError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  };
  const FileDescriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (in.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return {};
  struct stat status {};
  if (in.get() < 0 || ::fstat(in.get(), &status) != 0) refuse();
  constexpr std::size_t kPrefix = 8;
  const auto prefix = first_bytes(in.get(), kPrefix);
  if (!prefix) refuse();
  std::uint64_t length = 0;
  for (std::size_t i = prefix->size(); i-- > 0;)
    length = length << 8 | static_cast<unsigned char>((*prefix)[i]);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (prefix->size() < kPrefix || size < kPrefix || length > size - kPrefix) return {};
  auto header = first_bytes(in.get(), kPrefix + length);
  if (!header) refuse();
  return header->size() == kPrefix + length ? std::move(*header) : std::string();
}

}  // namespace sextant
